"""Affine quantization in pure torch: csrc/math/affine.h operation by operation, to the bit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.kernels.checks import check_dtype
from fxquant.kernels.quantize.qparams import along

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Dtypes of float values. All but float64 are computed in float32."""


@dataclass(frozen=True, slots=True)
class AffineQParams:
    """Scale, zero point and limits, in the dtype of the computation and in a shape that broadcasts."""

    scale: Tensor
    inverse: Tensor
    zero_point: Tensor
    low: Tensor
    high: Tensor

    def round_to_quantized(self, x: Tensor) -> Tensor:
        """Round to the nearest quantized values, ties to even, which are not clamped yet."""
        return torch.round(real(x) * self.inverse) + self.zero_point

    def saturate(self, q: Tensor) -> Tensor:
        """Clamp to the limits; NaN becomes the lower one."""
        q = torch.where(q > self.low, q, self.low)
        return torch.where(q < self.high, q, self.high)

    def inside(self, q: Tensor) -> Tensor:
        """Return where fake quantization lets the gradient through."""
        return (q >= self.low) & (q <= self.high)

    def dequantize(self, q: Tensor) -> Tensor:
        """Return the float values of clamped quantized values."""
        return (q - self.zero_point) * self.scale


def real(x: Tensor) -> Tensor:
    """Return ``x`` in the dtype of the computation."""
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
    """Broadcast qparams for the values of ``x``; ``scale`` is float32, ``zero_point`` int32 or float32, [C] or []."""
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
    """Return the nearest float of an integer that does not lie beyond it: a clamped value fits its integer type."""
    value = torch.tensor(limit, dtype=dtype)  # here, since reading it on a GPU waits, and on meta cannot be
    if (int(value) - limit) * direction < 0:
        value = torch.nextafter(value, torch.full_like(value, direction * torch.inf))
    return value.to(device)
