"""``python -m fxquant bench``: where the time of a model goes on this machine, in float and in int8."""

from __future__ import annotations

import argparse
import json

import torch

import fxquant as fxq
from fxquant.cli.command import RANDOM
from fxquant.cli.models import inputs_from, load_model
from fxquant.demo.measure import machine
from fxquant.errors import InputError


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
        print(json.dumps({"model": options.model, "machine": about, "data": RANDOM, **found.to_dict()}, indent=1))
    else:
        print(
            f"{options.model} on {about['cpu']}, threads: {about['threads']}, torch {about['torch']}\n{found}\n{RANDOM}"
        )
    return 0
