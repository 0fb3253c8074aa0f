"""A pattern of one's own, with its own lowering: a gate that nobody but this model has.

    python examples/custom_pattern.py

The gate is spelled out with two functions. Without the pattern its sigmoid stays float, with a dequantize before and a
quantize behind it. With it, both operators are one unit, which becomes a table of 256 bytes.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.demo.measure import sqnr
from fxquant.nn import QuantizedTable


def gate(x: Tensor) -> Tensor:
    """What the pattern below stands for."""
    return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    """A convolution with the gate behind it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return gate(self.conv(x))


def build(unit: fxq.UnitView) -> nn.Module:
    """The lowering: called once per unit, with the grids that calibration found."""
    return QuantizedTable(gate, unit.qparams["x"], unit.qparams["y"])


# The tree, from the output inwards. A name that stands twice must be the same value twice.
x = fxq.tensor("x")
scaled = fxq.op(torch.mul, commutative=True)(x, fxq.tensor("factor")).named("scaled")
sigmoid = fxq.op(torch.sigmoid)(scaled)
GATE = fxq.Pattern(
    name="gate",
    root=fxq.op(torch.mul, commutative=True)(x, sigmoid),
    inputs=("x",),
    check=lambda found: None if 1.702 in found["scaled"].args else fxq.Reject("another factor", found["scaled"]),
    lower={"cpu": build},
)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(first=Block(16), second=Block(16))).eval()
    data = [torch.randn(4, 16, 24, 24) for _ in range(4)]
    with torch.no_grad():
        expected = model(data[0])
    for title, patterns in (("without", fxq.DEFAULT_PATTERNS), ("with", (*fxq.DEFAULT_PATTERNS, GATE))):
        prepared = fxq.prepare(model, data[0], patterns=patterns)
        int8 = fxq.convert(fxq.calibrate(prepared, data, progress=False))
        with torch.no_grad():
            print(f"{title} the pattern: {sqnr(expected, int8(data[0])):.1f} dB")
        print(f"{prepared}\n")


if __name__ == "__main__":
    main()
