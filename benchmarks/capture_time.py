"""The time of ``prepare`` by each door: torch.fx, a program of torch.export, and ``capture="export"``.

Calls take turns in one process and on one thread; medians of processor time in seconds, the first turn aside.
``program`` prepares a program that was exported before. ``capture="export"`` exports the model itself, with all sizes
open, since other sizes are not to be refused; ``torch.export`` alone, with that and with fixed sizes, stands beside it.
The last columns are ratios to torch.fx.

python benchmarks/capture_time.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
from tabulate import tabulate
from torch import Tensor, nn

import fxquant as fxq
from fxquant.demo.measure import machine

MODELS = ("resnet18", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5", "vit_b_32")
SIDES = {"vit_b_32": 224}
"""Pixels of a side, of networks that take one size alone."""
SIDE = 64
"""The same, of the others: what capture does hangs on the number of operators, not on sizes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="MODEL", help="names in torchvision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    about = machine()
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    rows = [{"model": name, **measure(*network(name), options.rounds)} for name in options.models]
    print(tabulate(rows, headers="keys", floatfmt=".2f"), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": about, "rounds": options.rounds, "rows": rows}, indent=1))


def network(name: str) -> tuple[nn.Module, Tensor]:
    """A network of torchvision, and an input."""
    torch.manual_seed(0)
    side = SIDES.get(name, SIDE)
    return torchvision.models.get_model(name, weights=None).eval(), torch.randn(2, 3, side, side)


def measure(model: nn.Module, x: Tensor, rounds: int) -> dict[str, float]:
    """Seconds of a call of each kind, and the ratios to torch.fx."""
    program = exported(model, x, {0: torch.export.Dim.AUTO})
    open_sizes = dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO)
    calls = {
        "torch.fx": lambda: fxq.prepare(model, x, capture="fx"),
        "program": lambda: fxq.prepare(program, x),
        "export": lambda: fxq.prepare(model, x, capture="export"),
        "torch.export, open": lambda: exported(model, x, open_sizes),
        "torch.export, fixed": lambda: exported(model, x, None),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that torch.export fixes
        taken = in_turns(calls, rounds)
    first = taken["torch.fx"]
    return {**taken, **{f"{key} / torch.fx": taken[key] / first for key in list(calls)[1:]}}


def exported(model: nn.Module, x: Tensor, sizes: Any) -> Any:
    return torch.export.export(model, (x,), dynamic_shapes=None if sizes is None else (sizes,), strict=False)


def in_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Medians of processor time, in seconds; the first turn, which imports and fills caches, does not count."""
    taken: dict[str, list[float]] = {key: [] for key in calls}
    for turn in range(rounds + 1):
        for key, call in calls.items():
            start = time.process_time()
            call()
            if turn:
                taken[key].append(time.process_time() - start)
    return {key: statistics.median(each) for key, each in taken.items()}


if __name__ == "__main__":
    main()
