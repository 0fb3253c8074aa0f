"""Where the time of an int8 network goes, by kind of unit: in int8, and what the same units take in float.

The figures are those of ``fxquant.convert(prepared, tune=batch)``: medians of each unit by itself, in int8 as a program
runs it, without Python in between. ``share`` is that of the sum of all units in int8.

``--layers`` measures single layers instead, on one thread, in turns: the float layer, and the int8 model of that layer
alone, which quantizes its input and gives floats. ``runs as`` is what ``prepare`` makes of the layer where it stands
between float operators in a larger model.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torchvision
from tabulate import tabulate
from torch import nn

import fxquant as fxq
from fxquant.analysis.tuning_table import Tuning, TuningRow
from fxquant.demo.measure import interleaved_medians, machine
from fxquant.errors import PlanError
from fxquant.samples.networks import make_meaningful

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "1x1 3 > 3, 224": (nn.Conv2d(3, 3, 1), (1, 3, 224, 224)),
    "1x1 3 > 32, 224": (nn.Conv2d(3, 32, 1), (1, 3, 224, 224)),
    "1x1 16 > 16, 56": (nn.Conv2d(16, 16, 1), (1, 16, 56, 56)),
    "1x1 64 > 1, 56": (nn.Conv2d(64, 1, 1), (1, 64, 56, 56)),
    "1x1 64 > 64, 56": (nn.Conv2d(64, 64, 1), (1, 64, 56, 56)),
    "1x1 16 > 16, 8": (nn.Conv2d(16, 16, 1), (1, 16, 8, 8)),
    "3x3 8 > 8, 8": (nn.Conv2d(8, 8, 3, 1, 1), (1, 8, 8, 8)),
    "3 taps 16 > 16, 64": (nn.Conv1d(16, 16, 3, 1, 1), (1, 16, 64)),
    "2x2 transposed 16 > 8, 8": (nn.ConvTranspose2d(16, 8, 2, 2), (1, 16, 8, 8)),
    "3x3 / 2 3 > 32, 224": (nn.Conv2d(3, 32, 3, 2, 1), (1, 3, 224, 224)),
    "3x3 groups 32 of 4, 56": (nn.Conv2d(128, 128, 3, 1, 1, groups=32), (1, 128, 56, 56)),
    "3x3 depthwise 16, 112": (nn.Conv2d(16, 16, 3, 1, 1, groups=16), (1, 16, 112, 112)),
    "3x3 depthwise 64, 56": (nn.Conv2d(64, 64, 3, 1, 1, groups=64), (1, 64, 56, 56)),
    "7x7 depthwise 96, 56": (nn.Conv2d(96, 96, 7, 1, 3, groups=96), (1, 96, 56, 56)),
    "13x13 depthwise 96, 28": (nn.Conv2d(96, 96, 13, 1, 6, groups=96), (1, 96, 28, 28)),
    "3x3x3 16 > 16, 8x28x28": (nn.Conv3d(16, 16, 3, 1, 1), (1, 16, 8, 28, 28)),
    "linear 16 > 1, 4096 rows": (nn.Linear(16, 1), (4096, 16)),
    "linear 32 > 64, 1 row": (nn.Linear(32, 64), (1, 32)),
    "linear 128 > 128, 1 row": (nn.Linear(128, 128), (1, 128)),
    "linear 32 > 64, 2 rows": (nn.Linear(32, 64), (2, 32)),
    "linear 64 > 64, 4 rows": (nn.Linear(64, 64), (4, 64)),
    "linear 64 > 64, 8 rows": (nn.Linear(64, 64), (8, 64)),
    "linear 64 > 64, 64 rows": (nn.Linear(64, 64), (64, 64)),
    "linear 64 > 64, 128 rows": (nn.Linear(64, 64), (128, 64)),
    "linear 64 > 64, 512 rows": (nn.Linear(64, 64), (512, 64)),
    "linear 256 > 256, 2 rows": (nn.Linear(256, 256), (2, 256)),
    "linear 256 > 256, 4 rows": (nn.Linear(256, 256), (4, 256)),
    "linear 384 > 384, 2 rows": (nn.Linear(384, 384), (2, 384)),
    "bilinear x2 64, 28": (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 64, 28, 28)),
    "bilinear x16 21, 14": (nn.Upsample(scale_factor=16, mode="bilinear"), (1, 21, 14, 14)),
    "trilinear x2 16, 8x14x14": (nn.Upsample(scale_factor=2, mode="trilinear"), (1, 16, 8, 14, 14)),
}
"""Layers that int8 gains much from, little, or nothing, and an input of each."""

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


class Among(nn.Module):
    """A layer between float operators, beside one that is large enough to be int8."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.large = layer, nn.Linear(256, 256)

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.special.i0(self.layer(torch.special.i0(x))), self.large(rows)


def runs_as(layer: nn.Module, x: torch.Tensor) -> str:
    """What becomes of a layer between float operators."""
    rows = fxq.prepare(Among(layer).eval(), (x, torch.randn(64, 256))).coverage().rows
    return next(row.fate for row in rows if row.module == "layer")


def alone(layer: nn.Module, shape: tuple[int, ...], rounds: int) -> tuple[float, float | None]:
    """Microseconds of a layer in float, and of the int8 model of it; None where there is no integer operator.

    Layers without a weight become int8 only where their result is rounded.
    """
    x, layer = torch.randn(shape, generator=torch.Generator().manual_seed(0)), layer.eval()
    config = fxq.get_default_qconfig()
    if not hasattr(layer, "weight"):
        config = replace(config, output=fxq.MinMaxObserver.with_args(dtype=torch.uint8))
    try:
        int8 = fxq.convert(fxq.calibrate(fxq.prepare(layer, x, config), [x], progress=False))
    except PlanError:
        with torch.inference_mode():
            return 1e3 * interleaved_medians({"float": lambda: layer(x)}, rounds)["float"], None
    with torch.inference_mode():
        int8(x), int8(x), int8(x)  # the program is made
        ms = interleaved_medians({"float": lambda: layer(x), "int8": lambda: int8(x)}, rounds)
    return 1e3 * ms["float"], 1e3 * ms["int8"]


def measure_layers(rounds: int) -> list[dict[str, object]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for name, (layer, shape) in LAYERS.items():
        real, int8 = alone(layer, shape, rounds)
        rows.append([name, real, int8, int8 and int8 / real, runs_as(layer, torch.randn(shape))])
    headers = ("layer", "float µs", "int8 µs", "int8 / float", "runs as")
    print(tabulate(rows, headers=headers, floatfmt=".2f"))
    return [dict(zip(headers, row, strict=True)) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names of torchvision.models")
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--json", help="also write everything to this file")
    parser.add_argument("--layers", action="store_true", help="single layers, with their borders, on one thread")
    parser.add_argument("--rounds", type=int, default=40, help="of --layers")
    options = parser.parse_args()
    results = []
    print("\n".join(f"{key}: {value}" for key, value in machine().items() if key != "threads"), flush=True)
    if options.layers:
        results = measure_layers(options.rounds)
    for name in () if options.layers else options.models:
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
