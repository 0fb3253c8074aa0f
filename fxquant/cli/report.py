"""``python -m fxquant report``: one HTML file that shows what quantizing a model does to it."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import fxquant as fxq
from fxquant.cli.command import Command
from fxquant.cli.models import add_model_arguments, inputs_from, load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--backend", default="cpu", help="what to lower to (cpu)")
    parser.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE", help="(report.html)")
    parser.add_argument("--plan", action="store_true", help="what prepare decides, and no more: nothing is calibrated")


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
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, opens in any browser")
    return 0


COMMAND = Command(
    name="report",
    help="an HTML page of the same: graph, passes side by side, ranges, histograms, noise",
    description="Write one HTML file, which needs no network: the graph coloured by what becomes of each node, every "
    "pass side by side, ranges and histograms, parity and noise. Calibrated and measured on the input alone.",
    add_arguments=add_arguments,
    run=run,
)
