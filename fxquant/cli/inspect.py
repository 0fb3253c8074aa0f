"""``python -m fxquant inspect``: what would become int8 in a model, and what every pass does to its graph."""

from __future__ import annotations

import argparse

import torch

import fxquant as fxq
from fxquant.cli.data import data_from
from fxquant.cli.subject import prepared_from, subject_from


def run(options: argparse.Namespace) -> int:
    torch.manual_seed(0)
    subject, data = subject_from(options), data_from(options)
    if subject.form == "converted":
        print(f"{fxq.inspect_artifact(subject.spec)}\n\n{subject.model.quant_coverage}")
        return 0
    ready = prepared_from(options, subject, data, backend=options.backend, strict=options.strict)
    if not options.no_passes and options.to == "plan":
        fxq.print_passes(ready.quantizer, every_line=options.all)
    elif not options.no_passes:
        ready.calibrate()
        fxq.print_passes(fxq.convert(ready.quantizer, to=options.to), every_line=options.all)
    print(ready.quantizer)
    if options.to != "plan" and (caution := ready.caution(measured=False)):
        print(caution)
    return 0
