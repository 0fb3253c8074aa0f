"""``fxquant::quantize``: real numbers to integers."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.checks import check_axis, check_count, check_dtype, check_limits
from fxquant.kernels.layout import like
from fxquant.kernels.library import define
from fxquant.kernels.quantize.affine import FLOATS, make_affine_qparams
from fxquant.kernels.quantize.qparams import INTEGERS, as_tensors, scale_values, zero_point_values

OP = "fxquant::quantize"


def quantize(
    x: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    axis: int | None = None,
    channels_last: bool = False,
) -> Tensor:
    """Map real numbers to integers: ``clamp(round(x * (1 / scale)) + zero_point, quant_min, quant_max)``.

    Rounding is to nearest, ties to even, and comes before the zero point is added. NaN becomes ``quant_min``;
    infinities saturate. An activation that clamps (ReLU, ReLU6) is nothing but narrower limits.

    Args:
        x: float32, float64, float16 or bfloat16, any shape and strides. Computed in float64 if it is that, else in
            float32.
        scale: A number, or [C] or [] of any floating dtype, > 0, real units per step; rounded to float32. C is 1 if
            ``axis`` is None, else ``x.shape[axis]``.
        zero_point: A number, or [C] or [] of any integer dtype, or of a floating one with integral values; in steps. It
            may lie outside the limits.
        quant_min: Smallest integer, in steps; within the range of ``dtype``.
        quant_max: Largest integer.
        dtype: uint8, int8, int16 or int32. Beyond 2^24 only steps that are float32 numbers occur.
        axis: The dimension whose every index has its own scale and zero point; negative ones count from the end.
        channels_last: Give a 4-dimensional result in that memory format, whatever that of ``x`` is; quicker than to
            convert afterwards.

    Returns:
        ``dtype``, of the shape of ``x``, in its memory format unless ``channels_last``.

    Raises:
        RuntimeError: dtype, shape, axis, limits or device do not fit; the message names the argument.

    Source:
        Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
        arXiv:1712.05877, eq. 1 solved for q; ONNX QuantizeLinear, but for ``x * (1 / scale)`` instead of ``x / scale``.
    """
    scale, zero_point = as_tensors(x, scale, zero_point)
    return torch.ops.fxquant.quantize.default(x, scale, zero_point, quant_min, quant_max, dtype, axis, channels_last)


def reference(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    axis: int | None = None,
    channels_last: bool = False,
) -> Tensor:
    """The same in pure torch, on any device."""
    axis = _check(x, scale, zero_point, quant_min, quant_max, dtype, axis, channels_last)
    zero_point = zero_point_values(OP, zero_point)
    qparams = make_affine_qparams(OP, "x", x, scale_values(scale), zero_point, axis, quant_min, quant_max)
    q = qparams.saturate(qparams.steps(x)).to(torch.int32).to(dtype)
    if channels_last:
        return torch.empty_like(q, memory_format=torch.channels_last).copy_(q)
    return like(x, q)


def _fake(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    axis: int | None = None,
    channels_last: bool = False,
) -> Tensor:
    _check(x, scale, zero_point, quant_min, quant_max, dtype, axis, channels_last)
    memory_format = torch.channels_last if channels_last else torch.preserve_format
    return torch.empty_like(x, dtype=dtype, memory_format=memory_format)


def _check(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    axis: int | None,
    channels_last: bool,
) -> int | None:
    check_dtype(OP, "x", x, FLOATS)
    check_dtype(OP, "dtype", dtype, INTEGERS)
    check_limits(OP, quant_min, quant_max, dtype)
    if channels_last and x.dim() != 4:
        raise KernelError(
            f"{OP}: channels_last is for images only", got=f"{x.dim()} dimensions", expected="4: [N, C, H, W]"
        )
    axis = None if axis is None else check_axis(OP, axis, x.dim())
    channels = 1 if axis is None else x.shape[axis]
    check_count(OP, "scale", scale, channels)
    check_count(OP, "zero_point", zero_point, channels)
    return axis


define(
    "quantize(Tensor x, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType dtype, "
    "int? axis=None, bool channels_last=False) -> Tensor",
    reference=reference,
    fake=_fake,
)
