"""A pattern of one's own, with its own lowering: the snake activation, x + sin²(x), of networks that make sounds.

    python examples/custom_pattern.py

fxquant leaves a sine alone, since it may turn within one quantization step. Without the pattern below it stays float,
with a dequantize before and a quantize behind it; with it, sine, square and sum are one unit: a table of 256 bytes.

Source of the activation: Ziyin et al., "Neural Networks Fail to Learn Periodic Functions", arXiv:2006.08195.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.measure.noise import sqnr
from fxquant.nn import QuantizedTable


def snake(x: Tensor) -> Tensor:
    """What the pattern below stands for."""
    return x + torch.sin(x) ** 2


class Block(nn.Module):
    """A convolution with the activation behind it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return snake(self.conv(x))


def is_square(captures: Mapping[str, Any]) -> fxq.Reject | None:
    """A check answers with the reason why a match will not do; the coverage table prints it."""
    exponent = captures["exponent"]
    return None if exponent == 2 else fxq.Reject(f"the sine is raised to {exponent}, not squared")


def build(unit: fxq.UnitView) -> nn.Module:
    """The lowering: called once per unit, with the qparams that calibration found."""
    return QuantizedTable(snake, unit.qparams["x"], unit.qparams["y"])


# The tree, from the inputs to the output. A name that stands twice must be the same value twice.
x = fxq.tensor("x")
squared = fxq.op(torch.pow)(fxq.op(torch.sin)(x), fxq.tensor("exponent"))
SNAKE = fxq.Pattern(
    name="snake",
    root=fxq.op(torch.add, commutative=True)(x, squared),
    inputs=("x",),
    check=is_square,
    lower={"cpu": build},
)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(first=Block(16), second=Block(16), head=nn.Conv2d(16, 8, 1))).eval()
    data = [torch.randn(4, 16, 24, 24) for _ in range(4)]
    with torch.no_grad():
        expected = model(data[0])
    for title, patterns in (("without", fxq.DEFAULT_PATTERNS), ("with", (*fxq.DEFAULT_PATTERNS, SNAKE))):
        prepared = fxq.prepare(model, data[0], patterns=patterns)
        int8 = fxq.convert(fxq.calibrate(prepared, data, progress=False))
        with torch.no_grad():
            print(f"{title} the pattern: {sqnr(expected, int8(data[0])):.1f} dB")
        print(f"{prepared}\n")


if __name__ == "__main__":
    main()
