"""``fxquant::dequantize``: integers to real numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.kernels.checks import check_axis, check_count, check_dtype
from fxquant.kernels.layout import like
from fxquant.kernels.library import define
from fxquant.kernels.quantize.qparams import INTEGERS, along, as_tensors, scale_values, zero_point_values

OP = "fxquant::dequantize"


def dequantize(q: Tensor, scale: Tensor | float, zero_point: Tensor | int, axis: int | None = None) -> Tensor:
    """Map integers to the real numbers they stand for: ``(q - zero_point) * scale``.

    Args:
        q: uint8, int8, int16 or int32, any shape and strides.
        scale: A number, or [C] or [] of any floating dtype, real units per step; rounded to float32. C is 1 if
            ``axis`` is None, else ``q.shape[axis]``.
        zero_point: A number, or [C] or [] of any integer dtype, or of a floating one with integral values; in steps.
        axis: The dimension whose every index has its own scale and zero point; negative ones count from the end.

    Returns:
        float32 of the shape and memory format of ``q``. The difference is exact, then made a float32; the product
        is rounded once.

    Raises:
        RuntimeError: dtype, shape, axis or device do not fit; the message names the argument.

    Source:
        Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
        arXiv:1712.05877, eq. 1.
    """
    scale, zero_point = as_tensors(q, scale, zero_point)
    return torch.ops.fxquant.dequantize.default(q, scale, zero_point, axis)


def reference(q: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None = None) -> Tensor:
    """The same in pure torch, on any device."""
    axis = _check(q, scale, zero_point, axis)
    steps = q.long() - along(zero_point_values(OP, zero_point), q, axis)
    return like(q, steps.float() * along(scale_values(scale), q, axis))


def _fake(q: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None = None) -> Tensor:
    _check(q, scale, zero_point, axis)
    return torch.empty_like(q, dtype=torch.float32)


def _check(q: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None) -> int | None:
    check_dtype(OP, "q", q, INTEGERS)
    axis = None if axis is None else check_axis(OP, axis, q.dim())
    channels = 1 if axis is None else q.shape[axis]
    check_count(OP, "scale", scale, channels)
    check_count(OP, "zero_point", zero_point, channels)
    return axis


define(
    "dequantize(Tensor q, Tensor scale, Tensor zero_point, int? axis=None) -> Tensor",
    reference=reference,
    fake=_fake,
)
