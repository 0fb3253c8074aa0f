"""Affine quantization in pure torch: csrc/math/affine.h operation by operation, to the bit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.kernels.checks import check_dtype
from fxquant.kernels.quantize.qparams import along

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Dtypes of real values. All but float64 are computed in float32."""


@dataclass(frozen=True, slots=True)
class AffineQParams:
    """Scale, zero point and limits, in the dtype of the computation and in a shape that broadcasts."""

    scale: Tensor
    inverse: Tensor
    zero_point: Tensor
    low: Tensor
    high: Tensor

    def steps(self, x: Tensor) -> Tensor:
        """The nearest steps, ties to even, not clamped."""
        return torch.round(real(x) * self.inverse) + self.zero_point

    def saturate(self, steps: Tensor) -> Tensor:
        """Clamped to the limits; NaN becomes the lower one."""
        steps = torch.where(steps > self.low, steps, self.low)
        return torch.where(steps < self.high, steps, self.high)

    def inside(self, steps: Tensor) -> Tensor:
        """Where fake quantization lets the gradient through."""
        return (steps >= self.low) & (steps <= self.high)

    def values(self, steps: Tensor) -> Tensor:
        """The real numbers of clamped steps."""
        return (steps - self.zero_point) * self.scale


def real(x: Tensor) -> Tensor:
    """``x`` in the dtype of the computation."""
    return x if x.dtype == torch.float64 else x.float()


def make_affine_qparams(
    op: str,
    argument: str,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int | None,
    quant_min: int,
    quant_max: int,
) -> AffineQParams:
    """The grid for the values of ``x``; ``scale`` is float32, ``zero_point`` int32 or float32, [C] or []."""
    check_dtype(op, argument, x, FLOATS)
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    scale = along(scale, x, axis).to(dtype)
    return AffineQParams(
        scale=scale,
        inverse=1.0 / scale,
        zero_point=along(zero_point, x, axis).to(dtype),
        low=_limit(quant_min, dtype, 1, x.device),
        high=_limit(quant_max, dtype, -1, x.device),
    )


def _limit(limit: int, dtype: torch.dtype, direction: int, device: torch.device) -> Tensor:
    """The nearest float of an integer that does not lie beyond it, so that a clamped value fits its integer type."""
    value = torch.tensor(limit, dtype=dtype)  # here, since reading it on a GPU waits, and on meta cannot be
    if (int(value) - limit) * direction < 0:
        value = torch.nextafter(value, torch.full_like(value, direction * torch.inf))
    return value.to(device)
