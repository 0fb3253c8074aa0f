"""``python -m fxquant report``: one HTML file that shows what quantizing a model does to it."""

from __future__ import annotations

import argparse

import torch

import fxquant as fxq
from fxquant.cli.data import data_from
from fxquant.cli.subject import Subject, prepared_from, subject_from


def run(options: argparse.Namespace) -> int:
    torch.manual_seed(0)
    subject, data = subject_from(options), data_from(options)
    caution = ""
    if subject.form == "converted":
        path = fxq.report(subject.model, options.output, about={"model": subject.spec})
    else:
        ready = prepared_from(options, subject, data, backend=options.backend)
        caution = ready.caution()
        if options.plan:
            path = fxq.report(ready.quantizer, options.output, about=about_of(options, subject))
        else:
            ready.calibrate()
            path = fxq.report(ready.quantizer, options.output, ready.batches(), about=about_of(options, subject))
    if caution:
        print(caution)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, opens in any browser")
    return 0


def about_of(options: argparse.Namespace, subject: Subject) -> dict[str, str]:
    """Return what the command line says of model, weights and data."""
    found = {"model": subject.spec}
    if options.weights is not None:
        found["weights"] = str(options.weights)
    elif subject.weights == "random":
        found["weights"] = "random"
    if options.data is not None:
        found["data"] = str(options.data)
    elif subject.form == "float":
        found["data"] = "random"
    return found
