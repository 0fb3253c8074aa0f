"""Softmax and layer norm of another checkout and of this one in turns, on rows of Swin-T and a vision transformer.

python benchmarks/int8_norms.py --against ../before --threads 1 --isa auto
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from layer_turns import geometric_mean, in_turns, serve
from tabulate import tabulate

from fxquant import kernels
from fxquant.demo.measure import machine
from fxquant.kernels.library import set_isa

HERE = Path(__file__).resolve()
Y = (0.02, 128, 0, 255, torch.uint8)
"""Qparams, limits and dtype of a layer norm's result."""


@dataclass(frozen=True)
class Rows:
    """One operator on rows of floats or of quantized values."""

    operator: str
    count: int
    columns: int
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.operator}, {self.count} x {self.columns} {self.dtype}"


def cases() -> list[Rows]:
    """Windows of 49 tokens; the stages of Swin-T; attention over 197 tokens."""
    shapes = [("softmax", 64 * 3 * 49, 49), ("softmax", 12 * 197, 197)]
    shapes += [("layer_norm", 3136 * 96 // columns, columns) for columns in (96, 192, 384, 768)]
    return [Rows(*shape, dtype) for shape in shapes for dtype in ("float32", "uint8")]


def prepare(settings: dict[str, Any]) -> None:
    torch.set_num_threads(settings["threads"])
    if settings["isa"] != "auto":
        set_isa(settings["isa"])


def make(fields: dict[str, Any]) -> tuple[Callable[[], object], int]:
    rows = Rows(**fields)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows.count, rows.columns, generator=generator)
    if rows.dtype == "uint8":
        x = (x * 20 + 128).clamp(0, 255).to(torch.uint8)
    if rows.operator == "softmax":
        return (lambda: kernels.softmax(x, 0.05, False, 1 / 256, 0, 0, 255, torch.uint8)), 1
    weight, bias = torch.ones(rows.columns), torch.zeros(rows.columns)
    return (lambda: kernels.layer_norm(x, weight, bias, 1e-5, 0.05, *Y)), 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout, built")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", default="auto", help="instruction set of both")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(prepare, make)
        return
    against = options.against or HERE.parents[1]
    settings = {"threads": options.threads, "isa": options.isa}
    found = list(in_turns(HERE, (against, HERE.parents[1]), dict.fromkeys(cases(), 1), settings, options.rounds))
    table = [[row.layer, row.before, row.now, row.faster] for row in found]
    print(tabulate(table, headers=["rows", "before, us", "now, us", "times as fast"], floatfmt=".2f"))
    print(f"geometric mean: {geometric_mean(found):.2f}")
    if options.json:
        results = {"machine": machine(), **settings, "rows": [asdict(row) for row in found]}
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
