"""``python -m fxquant inspect``: what would become int8 in a model, and what every pass does to its graph."""

from __future__ import annotations

import argparse

import torch

import fxquant as fxq
from fxquant.cli.command import Command
from fxquant.cli.models import add_model_arguments, inputs_from, load_model
from fxquant.passes.pipelines import CONVERT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--backend", default="cpu", help="what to lower to (cpu)")
    parser.add_argument("--strict", action="store_true", help="fail if anything quantizable stays float")
    parser.add_argument(
        "--to",
        default="int8",
        choices=("plan", *CONVERT),
        help="the form whose passes are shown (int8), calibrated on the input alone; plan: those of prepare, no more",
    )
    parser.add_argument("--all", action="store_true", help="print blocks too that read like an earlier one")
    parser.add_argument("--no-passes", action="store_true", help="the coverage table alone")


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
    return 0


COMMAND = Command(
    name="inspect",
    help="what would become int8 in a model, and what each pass does to its graph",
    description="Print a diff for each pass, then the table of what becomes int8, what stays float, and why.",
    add_arguments=add_arguments,
    run=run,
)
