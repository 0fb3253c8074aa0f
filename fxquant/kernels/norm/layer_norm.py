"""``fxquant::layer_norm``: rows of float or quantized values, normalized and quantized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import float32
from fxquant.kernels.call import define_operator
from fxquant.kernels.checks import check_count, check_dtype
from fxquant.kernels.norm.rows import RowsCall, power_of_two

STEP_BITS = 22
"""Steps of a row are at most 2^22."""
MOST_COLUMNS = 1 << 19
"""Squares of so many steps fit an int64."""
LARGEST_EPS = 1e300


@dataclass(eq=False, repr=False)
class LayerNormCall(RowsCall):
    """Take the mean off each row, divide by the standard deviation, scale and shift, and quantize.

    A row becomes whole steps of 2^-k, with the largest ``k <= 126`` at which its largest magnitude is below 2^22 of
    them, half to even; quantized values are steps already. Sums of steps and of their squares are exact in any order.
    ``mean = sum / columns`` and ``variance = squares / columns - mean * mean``, at least 0, in float64; ``whole`` is
    the mean rounded to even, ``inverse = float(1 / sqrt(variance + eps))`` with ``eps`` in squared steps. Then, each
    step in float32, ``r = (float(step - whole) - float(mean - whole)) * inverse * weight + bias``, and
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even. A row with NaN or infinity
    is NaN, which becomes ``quant_min``.

    Returns:
        ``dtype``, of the shape of ``x``, contiguous.

    Source:
        Ba et al., "Layer Normalization", arXiv:1607.06450, eq. 3.
    """

    op: ClassVar[str] = "fxquant::layer_norm"

    x: Tensor
    """float32, uint8 or int8 [..., columns]; at most 2^19 columns."""
    weight: Tensor
    """float32 [columns]."""
    bias: Tensor
    """float32 [columns]."""
    eps: float
    """Added to the variance; 0 to 1e300."""
    x_scale: float
    """Scale of quantized values, rounded to float32 first. Their zero point does not matter."""
    scale: float
    zero_point: int
    quant_min: int
    """Smallest integer of the output, inside the range of the dtype."""
    quant_max: int
    """Largest integer of the output."""
    dtype: torch.dtype

    def empty_result(self) -> Tensor:
        y = super().empty_result()
        if not 0 <= self.eps <= LARGEST_EPS:
            raise KernelError(
                f"{self.op}: eps is out of range", got=f"{self.eps:g}", expected="0 or a small positive number"
            )
        if self.x.shape[-1] > MOST_COLUMNS:
            raise KernelError(
                f"{self.op}: a row is too long for an exact sum of squares",
                got=self.x.shape[-1],
                expected=f"at most {MOST_COLUMNS} columns",
            )
        for argument, values in (("weight", self.weight), ("bias", self.bias)):
            check_dtype(self.op, argument, values, (torch.float32,))
            check_count(self.op, argument, values, self.x.shape[-1])
        return y

    def reference(self) -> Tensor:
        y = self.empty_result()
        if y.numel() == 0:
            return y
        if self.x.dtype == torch.float32:
            finite = self.x.isfinite().all(-1, keepdim=True)
            factor = step_factor(torch.where(finite, self.x, 0.0))
            steps = torch.round(torch.where(finite, self.x, 0.0) * factor).to(torch.int64)
            in_steps = self.eps * factor.to(torch.float64) * factor.to(torch.float64)
        else:
            steps = self.x.to(torch.int64)
            finite = torch.ones_like(self.x[..., :1], dtype=torch.bool)
            in_steps = torch.full_like(
                finite, self.eps / (float32(self.x_scale) * float32(self.x_scale)), dtype=torch.float64
            )
        count, sums = self.x.shape[-1], (steps.sum(-1, keepdim=True), steps.square().sum(-1, keepdim=True))
        mean, squares = (each.to(torch.float64) / count for each in sums)
        variance = squares - mean * mean
        whole = torch.round(mean)
        inverse = (1.0 / torch.sqrt(torch.where(variance > 0, variance, 0.0) + in_steps)).to(torch.float32)
        inverse = torch.where(finite, inverse, torch.nan)
        off = (steps - whole.to(torch.int64)).to(torch.float32) - (mean - whole).to(torch.float32)
        real = off * inverse * self.weight + self.bias
        return y.copy_(self.requantize(real, self.dtype))


def step_factor(x: Tensor) -> Tensor:
    """Return ``2^k`` for each row: how many steps 1 is.

    Args:
        x: float32 [..., columns], finite.

    Returns:
        float32 [..., 1].
    """
    field = x.abs().amax(-1, keepdim=True).view(torch.int32) >> 23  # the exponent, 127 more
    return power_of_two((STEP_BITS - 1 + 127 - field.clamp(min=1)).clamp(max=126))


layer_norm, reference = define_operator(LayerNormCall)
