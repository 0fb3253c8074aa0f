"""Padded convolutions on images as they are, and on images that have a border of zero points already, in turns.

The second is what a program could have if whoever writes an image left room for the padding of its reader. Each layer
is a part of a program. Who writes the border is not counted, so the difference is the most that borders could gain.

python benchmarks/int8_borders.py --models resnet18 mobilenet_v2
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from clocks import CLOCKS, add_clock
from int8_layers import X_ZERO_POINT, Layer, images, layers_of, operands, recorded
from tabulate import tabulate
from torch import Tensor

from fxquant.demo.measure import machine
from fxquant.kernels.conv.native import NativeConv
from fxquant.kernels.conv.reference import ConvGeometry

CALLS = 2
"""Convolutions of a program."""


@dataclass(frozen=True)
class Row:
    """One layer: microseconds of a call, and the median of the ratios of neighbouring turns."""

    layer: str
    count: int
    padded: float
    bordered: float
    ratio: float


def measure(layer: Layer, count: int, batch: int, rounds: int, clock: str) -> Row:
    """The same products on an image, and on one that is larger by its border."""
    both = (
        layer,
        replace(layer, padding=0, size=layer.size + 2 * layer.padding, columns=layer.columns + 2 * layer.padding),
    )
    weight, epilogue = operands(layer, layer.module())
    turns = []
    for each in both:
        conv = NativeConv(weight, torch.uint8, X_ZERO_POINT, ConvGeometry.of(each.module()), epilogue)
        x = images(each, batch)
        turns.append(turn(recorded(conv, x, CALLS), x, CLOCKS[clock]))
    times = [(turns[0](), turns[1]()) for _ in range(rounds + 1)][1:]
    padded, bordered = (1e6 * statistics.median(column) for column in zip(*times, strict=True))
    return Row(layer.name, count, padded, bordered, statistics.median(other / one for one, other in times))


def turn(program: Callable[[list[Tensor]], object], x: Tensor, now: Callable[[], float]) -> Callable[[], float]:
    """What runs the program for a millisecond or more, and returns the seconds of the fastest convolution."""

    def run() -> float:
        best, end = float("inf"), now() + 1e-3
        while (start := now()) < end:
            program([x])
            best = min(best, now() - start)
        return best / CALLS

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet18", "mobilenet_v2"], help="names of torchvision.models")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--json", type=Path, help="where to write the results")
    add_clock(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("\n".join(f"{key}: {value}" for key, value in machine().items()))
    found: dict[str, list[Row]] = {}
    for name in options.models:
        padded = {layer: count for layer, count in layers_of(name).items() if layer.kernel and layer.padding}
        found[name] = [
            measure(layer, count, options.batch, options.rounds, options.clock) for layer, count in padded.items()
        ]
        headers = (f"{name}, batch {options.batch}", "count", "as it is, us", "with a border, us", "border / as it is")
        print(tabulate([list(asdict(row).values()) for row in found[name]], headers=headers, floatfmt=".2f"))
        as_it_is = sum(row.count * row.padded for row in found[name])
        print(f"all: {sum(row.count * row.padded * row.ratio for row in found[name]) / as_it_is:.3f}\n", flush=True)
    if options.json:
        rows = {name: [asdict(row) for row in rows] for name, rows in found.items()}
        options.json.write_text(json.dumps({"machine": machine(), "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
