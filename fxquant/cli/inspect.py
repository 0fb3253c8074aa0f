"""``python -m fxquant inspect``: what would become int8 in a model, and what every pass does to its graph."""

from __future__ import annotations

import argparse

import torch

import fxquant as fxq
from fxquant.cli.command import RANDOM
from fxquant.cli.models import inputs_from, load_model


def run(options: argparse.Namespace) -> int:
    torch.manual_seed(0)
    model = load_model(options.model)
    inputs = inputs_from(options)
    prepared = fxq.prepare(model, inputs, backend=options.backend, strict=options.strict)
    if not options.no_passes and options.to == "plan":
        fxq.print_passes(prepared, every_line=options.all)
    elif not options.no_passes:
        prepared.observe(*inputs)
        fxq.print_passes(fxq.convert(prepared, to=options.to), every_line=options.all)
    print(prepared)
    if options.to != "plan":
        print(RANDOM)
    return 0
