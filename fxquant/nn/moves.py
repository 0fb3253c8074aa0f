"""Moves of stored integers that torch has for floats only, or that need a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.nn.base import QuantizedModule
from fxquant.nn.weight import byte_grid
from fxquant.spec import QParams


def interpolate(x: Tensor, *arguments: Any) -> Tensor:
    """``F.interpolate`` in a mode that repeats values, of uint8 or int8; torch has it for uint8 alone."""
    return F.interpolate(x.view(torch.uint8), *arguments).view(x.dtype)


class QuantizedZeroPad(QuantizedModule):
    """Stored integers with the zero point, which stands for 0.0, on the sides.

    Args:
        widths: As ``F.pad`` takes them: two for the last dimension, two for the one before it, …; below 0 they cut.
        x: Grid of the input and of the output; at most 8 bits, per tensor.

    Shape:
        uint8 or int8; the result has the same layout.

    Raises:
        LoweringError: the grid does not fit a byte.
    """

    def __init__(self, widths: Sequence[int], x: QParams) -> None:
        super().__init__()
        self.add_grid("x", byte_grid("the input", x))
        self.widths = [int(width) for width in widths]

    def derive(self) -> tuple[int]:
        return (self.scalars("x")[1],)

    def forward(self, x: Tensor) -> Tensor:
        (zero_point,) = self._derived or self.derived()
        return F.pad(x, self.widths, value=zero_point)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.forward(x)

    def extra_repr(self) -> str:
        return f"{self.widths}, {super().extra_repr()}"
