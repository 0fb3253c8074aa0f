"""``python -m fxquant bench``: where the time of a model goes on this machine, in float and in int8."""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

import fxquant as fxq
from fxquant.cli.data import data_from
from fxquant.cli.models import inputs_from
from fxquant.cli.subject import caution_of, prepared_from, refuse_converted, subject_from
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
        found, caution = _measured(options)
    finally:
        torch.set_num_threads(before)
    if options.json:
        print(json.dumps({"model": options.model, "machine": about, "data": caution, **found.to_dict()}, indent=1))
        return 0
    print(f"{options.model} on {about['cpu']}, threads: {about['threads']}, torch {about['torch']}\n{found}")
    if caution:
        print(caution)
    return 0


def _measured(options: argparse.Namespace) -> tuple[Any, str]:
    subject = subject_from(options)
    refuse_converted(subject, "bench")
    data, progress = data_from(options, batch=1), not options.json
    if data is None and subject.form == "float":  # profile calibrates on the inputs alone, which changes no time
        found = fxq.profile(subject.model, inputs_from(options), rounds=options.rounds, progress=progress)
        return found, caution_of(subject.weights, random_inputs=True)
    ready = prepared_from(options, subject, data)
    ready.calibrate(progress=progress)
    return fxq.profile(ready.quantizer, ready.inputs, rounds=options.rounds, progress=progress), ready.caution()
