"""``python -m fxquant report``: one HTML file that shows what quantizing a model does to it."""

from __future__ import annotations

import argparse

import torch

import fxquant as fxq
from fxquant.cli.data import data_from
from fxquant.cli.subject import prepared_from, subject_from


def run(options: argparse.Namespace) -> int:
    torch.manual_seed(0)
    subject, data = subject_from(options), data_from(options)
    caution = ""
    if subject.form == "converted":
        path = fxq.report(subject.model, options.output)
    else:
        ready = prepared_from(options, subject, data, backend=options.backend)
        caution = ready.caution()
        if options.plan:
            path = fxq.report(ready.quantizer, options.output)
        else:
            ready.calibrate()
            path = fxq.report(ready.quantizer, options.output, ready.batches())
    if caution:
        print(caution)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, opens in any browser")
    return 0
