"""Qparams whose zero point is a floating number, as the presets for embeddings have it: quantize, dequantize, and both.

Pure torch on every device: it is for weights, which are small, and no operator, so nothing of it is native.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.checks import check_axis, check_count, check_dtype, check_limits
from fxquant.kernels.layout import like
from fxquant.kernels.library import SETTINGS
from fxquant.kernels.quantize.affine import FLOATS, AffineQParams, make_affine_qparams, real
from fxquant.kernels.quantize.qparams import along, scale_values


def fake_quantize_float_qparams(
    op: str, input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """Return ``(clamp(round(x * (1 / scale) + zero_point)) - zero_point) * scale`` per index of ``axis``.

    The zero point is added before rounding, since it is no whole number, and may lie outside the limits. Its
    values, and those of ``scale``, are not read. NaN becomes ``quant_min``; infinities saturate. The gradient is
    straight-through.

    Args:
        op: Who calls, for messages.
        input: float32, float64, float16 or bfloat16; computed in float64 if it is that, else in float32.
        scale: [C] of any floating dtype, > 0; rounded to float32.
        zero_point: [C] of any floating dtype; rounded to float32.
        axis: The dimension of the channels; negative ones count from the end.
        quant_min: Smallest quantized value; an int32.
        quant_max: Largest quantized value; an int32.

    Returns:
        The dtype, shape and memory format of ``input``; and a bool mask of where the gradient passes.

    Raises:
        KernelError: dtype, shape, axis or limits do not fit, or FXQUANT_KERNELS=native.

    Source:
        ``torch.fake_quantize_per_channel_affine`` with floating zero points, whose float32 results are equal
        to the bit where the quantized value fits an int64.
    """
    if SETTINGS.kernels == "native":
        raise KernelError(
            f"{op} has no native kernel for floating zero points",
            got="FXQUANT_KERNELS=native",
            hint="FXQUANT_KERNELS=auto runs it in Python",
        )
    axis = check_axis(op, axis, input.dim())
    check_dtype(op, "input", input, FLOATS)
    check_count(op, "scale", scale, input.shape[axis])
    check_count(op, "zero_point", zero_point, input.shape[axis])
    check_limits(op, quant_min, quant_max)
    return _StraightThrough.apply(op, input, scale_values(scale), zero_point.float(), axis, quant_min, quant_max)


def quantize_float_qparams(
    op: str,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Quantize as :func:`fake_quantize_float_qparams` does, to ``dtype``; arguments as there."""
    qparams = make_affine_qparams(
        op, "input", input, scale_values(scale), zero_point.float(), axis, quant_min, quant_max
    )
    return like(input, qparams.saturate(_round_to_quantized(input, qparams)).to(torch.int32).to(dtype))


def dequantize_float_qparams(q: Tensor, scale: Tensor, zero_point: Tensor, axis: int) -> Tensor:
    """Dequantize such values to float32, as :func:`fake_quantize_float_qparams` does for a float32 tensor."""
    difference = q.double() - along(zero_point.double(), q, axis)
    return like(q, (difference * along(scale.double(), q, axis)).float())


def _round_to_quantized(x: Tensor, qparams: AffineQParams) -> Tensor:
    return torch.round(real(x) * qparams.inverse + qparams.zero_point)


class _StraightThrough(torch.autograd.Function):
    """Has no forward-mode derivative, with which torch.compile would not take it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        op: str, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
    ) -> tuple[Tensor, Tensor]:
        qparams = make_affine_qparams(op, "input", x, scale, zero_point, axis, quant_min, quant_max)
        steps = _round_to_quantized(x, qparams)
        # the difference is no whole number: in float32 it would be rounded too, before the product is
        values = (qparams.saturate(steps).double() - qparams.zero_point.double()) * qparams.scale.double()
        return like(x, values.to(steps.dtype).to(x.dtype)), like(x, qparams.inside(steps))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, mask = output
        ctx.save_for_backward(mask)
        ctx.mark_non_differentiable(mask)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        passed = None if grad is None else torch.ops.fxquant.fake_quantize_backward.default(grad, mask)
        return None, passed, None, None, None, None, None
