"""Moves of stored integers that torch has for floats only, or that need a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.kernels import table
from fxquant.kernels.quantize.quantize import reference as quantize_reference
from fxquant.kernels.table.table import table_reference
from fxquant.nn.quantize import Requantize
from fxquant.plan.spec import QParams


def interpolate(x: Tensor, *arguments: Any) -> Tensor:
    """``F.interpolate`` in a mode that repeats values, of uint8 or int8; torch has it for uint8 alone."""
    return F.interpolate(x.view(torch.uint8), *arguments).view(x.dtype)


class QuantizedPad(SameDtypeModule):
    """Stored integers with a number on the sides: 0.0, which the zero point stands for, or another.

    Args:
        widths: As ``F.pad`` takes them: two for the last dimension, two for the one before it, …; below 0 they cut.
            None where every call brings its own.
        x: Grid of the input; at most 8 bits, per tensor.
        y: Grid of the output, which holds ``value`` too. The same as ``x`` where that is 0.
        value: In real units.

    Shape:
        uint8 or int8; the result has the same layout.

    Raises:
        LoweringError: a grid does not fit a byte.
    """

    def __init__(self, widths: Sequence[int] | None, x: QParams, y: QParams | None = None, value: float = 0.0) -> None:
        super().__init__()
        self.add_same_dtype_qparams("y", x if y is None else y)
        self.add_same_dtype_qparams("x", x)
        self.widths = None if widths is None else [int(width) for width in widths]
        self.value = value

    def pack(self) -> tuple[int, Tensor | None]:
        x, y = self.qparams("x"), self.qparams("y")
        scheme = y.scheme
        value = torch.tensor([self.value], dtype=torch.float32, device=y.scale.device)
        filling = quantize_reference(value, y.scale, y.zero_point, scheme.quant_min, scheme.quant_max, scheme.dtype)
        same = torch.equal(x.scale, y.scale) and torch.equal(x.zero_point, y.zero_point) and x.scheme == scheme
        return int(filling), None if same else Requantize(x, y).pack()[0]

    def forward(self, x: Tensor, widths: Sequence[int] | None = None) -> Tensor:
        filling, entries = self._packed or self.packed()
        on_qparams = x if entries is None else table(x, entries)
        return F.pad(on_qparams, list(widths or self.widths or ()), value=filling)

    def reference(self, *inputs: Any) -> Tensor:
        x, *given = inputs
        widths = given[0] if given else self.widths
        filling, entries = self.packed()
        on_qparams = x if entries is None else table_reference(x, entries)
        return F.pad(on_qparams, list(widths or ()), value=filling)

    def extra_repr(self) -> str:
        value = "" if self.value == 0 else f"value={self.value}, "
        return f"{self.widths or 'computed widths'}, {value}{super().extra_repr()}"
