"""``python -m fxquant report``: one HTML file that shows what quantizing a model does to it."""

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
    prepared = fxq.prepare(model, inputs, backend=options.backend)
    if options.plan:
        path = fxq.report(prepared, options.output)
    else:
        prepared.observe(*inputs)
        path = fxq.report(prepared, options.output, [inputs])
    print(RANDOM)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, opens in any browser")
    return 0
