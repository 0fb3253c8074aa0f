"""Where the time of an int8 network goes, by kind of unit: in int8, and what the same units take in float.

The figures are those of ``fxquant.convert(prepared, tune=batch)``: medians of each unit by itself, in int8 as a program
runs it, without Python in between. ``share`` is that of the sum of all units in int8.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
import torchvision
from tabulate import tabulate

import fxquant as fxq
from fxquant.demo.measure import machine
from fxquant.samples.networks import make_meaningful
from fxquant.tuning import Tuning, TuningRow

MODELS = ("mobilenet_v2", "resnet50", "vit_b_16")
HEADERS = ("unit", "count", "int8 µs", "share %", "float µs", "float / int8")


def tuning_of(name: str, batch: int) -> Tuning:
    """What was measured for a network of torchvision with random weights, on random images of 224 pixels."""
    make = getattr(torchvision.models, name)
    heads = {"aux_logits": False, "init_weights": False} if "aux_logits" in inspect.signature(make).parameters else {}
    model = make(**heads).eval()
    make_meaningful(model)
    x = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    with contextlib.redirect_stdout(io.StringIO()):  # the table of all units
        return fxq.convert(prepared, tune=x).tuning


def by_kind(tuning: Tuning) -> Iterator[list[object]]:
    """A row for each pattern, the dearest first."""
    kinds: dict[str, list[TuningRow]] = defaultdict(list)
    for row in tuning:
        kinds[row.pattern].append(row)
    total = sum(row.int8_us for row in tuning)
    for name, rows in sorted(kinds.items(), key=lambda kind: -sum(row.int8_us for row in kind[1])):
        yield line(name, rows, total)
    yield line("all", list(tuning), total)


def line(name: str, rows: list[TuningRow], total: float) -> list[object]:
    int8, real = sum(row.int8_us for row in rows), sum(row.float_us for row in rows)
    return [name, len(rows), int8, 100 * int8 / total, real, real / int8 if int8 else None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names of torchvision.models")
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--json", help="also write everything to this file")
    options = parser.parse_args()
    results = []
    print("\n".join(f"{key}: {value}" for key, value in machine().items() if key != "threads"), flush=True)
    for name in options.models:
        for threads in options.threads:
            torch.set_num_threads(threads)
            for batch in options.batch:
                torch.manual_seed(0)
                tuning = tuning_of(name, batch)
                print(
                    f"\n{name}, batch {batch}, threads {threads}: float {tuning.float_ms:.2f} ms, int8 "
                    f"{tuning.int8_ms:.2f} ms, tuned {tuning.tuned_ms:.2f} ms, {len(tuning.in_float)} units in float"
                )
                rows = list(by_kind(tuning))
                print(tabulate(rows, headers=HEADERS, floatfmt=".1f"), flush=True)
                about = {"model": name, "batch": batch, "threads": threads}
                whole = {"float ms": tuning.float_ms, "int8 ms": tuning.int8_ms, "tuned ms": tuning.tuned_ms}
                results.append({**about, **whole, "rows": [dict(zip(HEADERS, row, strict=True)) for row in rows]})
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
