"""``fxquant::softmax``: rows of float or quantized values, as quantized shares of 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.kernels.arithmetic import float32
from fxquant.kernels.call import define_operator
from fxquant.kernels.norm.rows import RowsCall, exp_parts, power_of_two

EXP_BITS = 30
"""Exponentials are whole multiples of 2^-30."""
SMALLEST_POWER = -40.0
"""Of two: what is smaller is 0 of these steps."""


@dataclass(eq=False, repr=False)
class SoftmaxCall(RowsCall):
    """Divide the exponentials of each row by their sum, and quantize.

    ``e = exp_steps(x - max(x))``, whole multiples of 2^-30, whose sum is exact in any order;
    ``r = float(e) * float(1 / sum(e))``, the quotient in float64; then
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even. Of quantized values
    ``x - max(x)`` is ``float(q - max(q)) * x_scale``, so there are 256 exponentials. A row with NaN or infinity is NaN,
    and so is one of nothing but minus infinity: all of it becomes ``quant_min``.

    Returns:
        ``dtype``, of the shape of ``x``, contiguous.

    Source:
        Kim et al., "I-BERT: Integer-only BERT Quantization", arXiv:2101.01321, section 3.4: the largest value taken
        off, powers of two as shifts, and a polynomial for what is left.
    """

    op: ClassVar[str] = "fxquant::softmax"

    x: Tensor
    """float32, uint8 or int8 [..., columns]."""
    x_scale: float
    """Scale of quantized values, rounded to float32 first. Their zero point does not matter."""
    safe: bool
    """Whether a row of nothing but minus infinity is 0 in place of NaN."""
    scale: float
    zero_point: int
    quant_min: int
    """Smallest integer of the output, inside the range of the dtype."""
    quant_max: int
    """Largest integer of the output."""
    dtype: torch.dtype

    def reference(self) -> Tensor:
        y = self.empty_result()
        if y.numel() == 0:
            return y
        if self.x.dtype == torch.float32:
            largest = torch.where(self.x.isnan(), torch.inf, self.x).amax(-1, keepdim=True)
            below, finite, masked = self.x - largest, largest.isfinite(), largest == -torch.inf
        else:
            q = self.x.to(torch.int32)
            below = (q - q.amax(-1, keepdim=True)).to(torch.float32) * float32(self.x_scale)
            finite = torch.ones_like(below[..., :1], dtype=torch.bool)
            masked = ~finite
        steps = exp_steps(below)
        factor = (1.0 / steps.sum(-1, keepdim=True, dtype=torch.int64).to(torch.float64)).to(torch.float32)
        factor = torch.where(finite, factor, torch.nan)
        if self.safe:
            factor = torch.where(masked, 0.0, factor)
        return y.copy_(self.requantize(steps.to(torch.float32) * factor, self.dtype))


def exp_steps(x: Tensor) -> Tensor:
    """Return ``e^x`` in steps of 2^-30, for x <= 0; 0 for NaN.

    Args:
        x: float32, any shape.

    Returns:
        int32, of that shape.
    """
    y, power = exp_parts(x, SMALLEST_POWER)
    return torch.round(y * power_of_two(power + EXP_BITS)).to(torch.int32)


softmax, reference = define_operator(SoftmaxCall)
