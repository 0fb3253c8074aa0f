"""``python -m fxquant bench``: where the time of a model goes on this machine, in float and in int8."""

from __future__ import annotations

import argparse
import json

import torch

import fxquant as fxq
from fxquant.cli.command import Command
from fxquant.cli.models import add_model_arguments, inputs_from, load_model
from fxquant.demo.measure import machine
from fxquant.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--rounds", type=int, default=7, help="of the measurement, of which the median counts (7)")
    parser.add_argument("--threads", type=int, help="that torch computes with (as many as it chooses)")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON in place of the table")


def run(options: argparse.Namespace) -> int:
    torch.manual_seed(0)
    before = torch.get_num_threads()
    try:
        if options.threads is not None:
            if options.threads < 1:
                raise InputError("this is no number of threads", got=options.threads, expected="1 or more")
            torch.set_num_threads(options.threads)
        about = machine()
        model, inputs = load_model(options.model), inputs_from(options)
        found = fxq.profile(model, inputs, rounds=options.rounds, progress=not options.json)
    finally:
        torch.set_num_threads(before)
    if options.json:
        print(json.dumps({"model": options.model, "machine": about, **found.to_dict()}, indent=1))
    else:
        print(f"{options.model} on {about['cpu']}, threads: {about['threads']}, torch {about['torch']}\n{found}")
    return 0


COMMAND = Command(
    name="bench",
    help="what each operator of a model takes here, in float and in int8",
    description="Measure each unit in float and in int8, borders and what stays float, and both models as a whole.",
    add_arguments=add_arguments,
    run=run,
)
