"""``fxquant::fake_quantize_*``: round to the integer grid and back, with a straight-through gradient.

Each operator has a twin ``*_cachemask`` that also says where the gradient passes; with gradients wanted, the plain one
runs its twin. The mask is a byte per element: less to keep, and less to read again, than the input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.checks import check_axis, check_count, check_dtype, check_limits, check_zero_points
from fxquant.kernels.fake_quantize.float_qparams import fake_quantize_float_qparams
from fxquant.kernels.gradient import Differentiable, below_autograd, differentiate, in_backward
from fxquant.kernels.layout import like
from fxquant.kernels.library import define
from fxquant.kernels.quantize.affine import FLOATS, AffineQParams, make_affine_qparams
from fxquant.kernels.quantize.qparams import scale_values, zero_point_values

TENSOR_OP = "fxquant::fake_quantize_per_tensor_affine"
CHANNEL_OP = "fxquant::fake_quantize_per_channel_affine"
BACKWARD_OP = "fxquant::fake_quantize_backward"


def fake_quantize_per_tensor_affine(
    input: Tensor, scale: float | Tensor, zero_point: int | Tensor, quant_min: int, quant_max: int
) -> Tensor:
    """Round to one integer grid and map back: ``(clamp(round(x * (1 / scale)) + zero_point) - zero_point) * scale``.

    Rounding is to nearest, ties to even, and comes before the zero point is added. NaN becomes ``quant_min``;
    infinities saturate. The gradient is straight-through: 1 where the rounded value lies in ``[quant_min, quant_max]``,
    else 0; ``scale`` and ``zero_point`` get none.

    Args:
        input: float32, float64, float16 or bfloat16, any shape and strides. Computed in float64 if it is that, else in
            float32.
        scale: > 0, real units per step; a number, or a tensor [1] or [] of any floating dtype; rounded to float32.
        zero_point: In steps, within the limits; a number if ``scale`` is one, else a tensor [1] or [] of any integer
            dtype, or of a floating one with integral values.
        quant_min: Smallest step; an int32.
        quant_max: Largest step; an int32.

    Returns:
        The dtype, shape and memory format of ``input``; always a new tensor.

    Raises:
        RuntimeError: dtype, shape, limits or device do not fit; the message names the argument. The values of qparams
            on a GPU are not read, so not checked.

    Source:
        Jacob et al., arXiv:1712.05877, eq. 12; straight-through estimator: Bengio et al., arXiv:1308.3432. Signature:
        ``torch.fake_quantize_per_tensor_affine``, whose float32 results are equal to the bit.
    """
    call = _per_tensor_qparams if isinstance(scale, Tensor) else _per_tensor
    return call(input, scale, zero_point, quant_min, quant_max)


def fake_quantize_per_channel_affine(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    """Round to an integer grid per index of one dimension, and map back.

    As :func:`fake_quantize_per_tensor_affine`, but for:

    Args:
        input: At least 1-dimensional.
        scale: [C] of any floating dtype, C = ``input.shape[axis]``, > 0, real units per step; rounded to float32.
        zero_point: [C] of any integer dtype, in steps, within the limits. Or of a floating dtype: any real numbers,
            which are added before rounding (``kernels.float_qparams``, in Python; the operator itself takes integral
            values only, as integers).
        axis: The dimension of the channels; negative ones count from the end.
        quant_min: Smallest step; an int32.
        quant_max: Largest step; an int32.

    Returns:
        The dtype, shape and memory format of ``input``; always a new tensor.

    Raises:
        RuntimeError: dtype, shape, axis, limits or device do not fit; the message names the argument.

    Source:
        Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference", arXiv:1806.08342, section 2.
        Signature: ``torch.fake_quantize_per_channel_affine``.
    """
    if zero_point.is_floating_point():
        return fake_quantize_float_qparams(CHANNEL_OP, input, scale, zero_point, axis, quant_min, quant_max)[0]
    return _per_channel(input, scale, zero_point, axis, quant_min, quant_max)


def tensor_reference(input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> Tensor:
    """Per tensor, in pure torch, on any device."""
    return tensor_mask_reference(input, scale, zero_point, quant_min, quant_max)[0]


def tensor_qparams_reference(
    input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int
) -> Tensor:
    """The same with qparams as tensors."""
    return tensor_qparams_mask_reference(input, scale, zero_point, quant_min, quant_max)[0]


def channel_reference(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    """Per channel, in pure torch, on any device."""
    return channel_mask_reference(input, scale, zero_point, axis, quant_min, quant_max)[0]


def tensor_mask_reference(
    input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """The result, and a bool mask of where the gradient passes."""
    _check_scalars(input, scale, zero_point, quant_min, quant_max)
    scales = torch.tensor(scale, dtype=torch.float32, device=input.device)
    zero_points = torch.tensor(zero_point, dtype=torch.int32, device=input.device)
    return _apply(
        input, make_affine_qparams(TENSOR_OP, "input", input, scales, zero_points, None, quant_min, quant_max)
    )


def tensor_qparams_mask_reference(
    input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """The same with qparams as tensors."""
    _check_tensors(TENSOR_OP, input, scale, zero_point, 1, quant_min, quant_max)
    zero_point = zero_point_values(TENSOR_OP, zero_point)
    check_zero_points(TENSOR_OP, zero_point, quant_min, quant_max)
    qparams = make_affine_qparams(
        TENSOR_OP, "input", input, scale_values(scale), zero_point, None, quant_min, quant_max
    )
    return _apply(input, qparams)


def channel_mask_reference(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """The result, and a bool mask of where the gradient passes."""
    axis = check_axis(CHANNEL_OP, axis, input.dim())
    _check_tensors(CHANNEL_OP, input, scale, zero_point, input.shape[axis], quant_min, quant_max)
    zero_point = zero_point_values(CHANNEL_OP, zero_point)
    check_zero_points(CHANNEL_OP, zero_point, quant_min, quant_max)
    qparams = make_affine_qparams(
        CHANNEL_OP, "input", input, scale_values(scale), zero_point, axis, quant_min, quant_max
    )
    return _apply(input, qparams)


def backward_reference(grad: Tensor, mask: Tensor) -> Tensor:
    """``grad`` where ``mask``, else 0 whatever comes in; in the memory format of ``mask``."""
    _check_mask(grad, mask)
    return like(mask, torch.where(mask, grad, torch.zeros((), dtype=grad.dtype, device=grad.device)))


def _apply(input: Tensor, qparams: AffineQParams) -> tuple[Tensor, Tensor]:
    steps = qparams.steps(input)
    return like(input, qparams.values(qparams.saturate(steps)).to(input.dtype)), like(input, qparams.inside(steps))


def _check_scalars(input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> None:
    check_dtype(TENSOR_OP, "input", input, FLOATS)
    check_limits(TENSOR_OP, quant_min, quant_max)
    check_zero_points(TENSOR_OP, zero_point, quant_min, quant_max)


def _check_tensors(
    op: str, input: Tensor, scale: Tensor, zero_point: Tensor, channels: int, quant_min: int, quant_max: int
) -> None:
    check_dtype(op, "input", input, FLOATS)
    check_count(op, "scale", scale, channels)
    check_count(op, "zero_point", zero_point, channels)
    check_limits(op, quant_min, quant_max)


def _check_mask(grad: Tensor, mask: Tensor) -> None:
    check_dtype(BACKWARD_OP, "grad", grad, FLOATS)
    check_dtype(BACKWARD_OP, "mask", mask, (torch.bool,))
    if grad.shape != mask.shape:
        expected = f"{list(grad.shape)}, as grad"
        raise KernelError(f"{BACKWARD_OP}: mask has the wrong shape", got=list(mask.shape), expected=expected)


def _tensor_fake(input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> Tensor:
    _check_scalars(input, scale, zero_point, quant_min, quant_max)
    return torch.empty_like(input)


def tensor_qparams_fake(input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int) -> Tensor:
    _check_tensors(TENSOR_OP, input, scale, zero_point, 1, quant_min, quant_max)
    return torch.empty_like(input)


def _channel_fake(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    axis = check_axis(CHANNEL_OP, axis, input.dim())
    _check_tensors(CHANNEL_OP, input, scale, zero_point, input.shape[axis], quant_min, quant_max)
    return torch.empty_like(input)


def with_mask(fake: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def masked(input: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        result = fake(input, *args)
        return result, torch.empty_like(result, dtype=torch.bool)

    return masked


def _backward_fake(grad: Tensor, mask: Tensor) -> Tensor:
    _check_mask(grad, mask)
    return torch.empty_like(mask, dtype=grad.dtype)


def _define_pair(
    name: str,
    arguments: str,
    references: tuple[Callable[..., Any], Callable[..., Any]],
    fake: Callable[..., Tensor],
    overload: str = "",
) -> Callable[..., Tensor]:
    """Define an operator and its twin with the mask, and their gradient; what to call in place of the operator."""
    suffix = f".{overload}" if overload else ""
    define(f"{name}{suffix}({arguments}) -> Tensor", reference=references[0], fake=fake, gradient=True)
    define(
        f"{name}_cachemask{suffix}({arguments}) -> (Tensor output, Tensor mask)",
        reference=references[1],
        fake=with_mask(fake),
        gradient=True,
    )
    plain = getattr(getattr(torch.ops.fxquant, name), overload or "default")
    twin = getattr(getattr(torch.ops.fxquant, f"{name}_cachemask"), overload or "default")
    differentiate(twin, lambda *args: StraightThrough.apply(twin, *args))
    return differentiate(plain, lambda *args: _StraightThroughAlone.apply(twin, *args))


class StraightThrough(Differentiable):
    """The result and the mask of an operator ``*_cachemask``; the gradient passes where the mask says so."""

    @staticmethod
    def forward(ctx: Any, twin: torch._ops.OpOverload, *args: Any) -> tuple[Tensor, Tensor]:
        y, mask = below_autograd(twin, *args)
        ctx.save_for_backward(mask)
        ctx.save_for_forward(mask)
        ctx.mark_non_differentiable(mask)
        ctx.set_materialize_grads(False)
        return y, mask

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        return None, _masked(ctx, grad), *[None] * (len(ctx.needs_input_grad) - 2)

    @staticmethod
    def jvp(ctx: Any, _: None, tangent: Tensor | None, *__: Any) -> tuple[Tensor | None, None]:
        return _masked_tangent(ctx, tangent), None


class _StraightThroughAlone(Differentiable):
    """The same without the mask among its results, which costs less."""

    @staticmethod
    def forward(ctx: Any, twin: torch._ops.OpOverload, *args: Any) -> Tensor:
        y, mask = below_autograd(twin, *args)
        ctx.save_for_backward(mask)
        ctx.save_for_forward(mask)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, _masked(ctx, grad), *[None] * (len(ctx.needs_input_grad) - 2)

    @staticmethod
    def jvp(ctx: Any, _: None, tangent: Tensor | None, *__: Any) -> Tensor | None:
        return _masked_tangent(ctx, tangent)


def _masked(ctx: Any, grad: Tensor | None) -> Tensor | None:
    (mask,) = ctx.saved_tensors
    return None if grad is None else in_backward(_BACKWARD, grad, mask)


def _masked_tangent(ctx: Any, tangent: Tensor | None) -> Tensor | None:
    (mask,) = ctx.saved_tensors
    return None if tangent is None else _BACKWARD(tangent, mask)


class _MaskedGradient(Differentiable):
    """``fake_quantize_backward`` is linear in the gradient, and its own derivative."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.save_for_forward(mask)
        return below_autograd(_BACKWARD, grad, mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return in_backward(_BACKWARD, grad, mask), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, _: None) -> Tensor | None:
        (mask,) = ctx.saved_tensors
        return None if tangent is None else _BACKWARD(tangent, mask)


_per_tensor = _define_pair(
    "fake_quantize_per_tensor_affine",
    "Tensor input, float scale, int zero_point, int quant_min, int quant_max",
    (tensor_reference, tensor_mask_reference),
    _tensor_fake,
)
_per_tensor_qparams = _define_pair(
    "fake_quantize_per_tensor_affine",
    "Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max",
    (tensor_qparams_reference, tensor_qparams_mask_reference),
    tensor_qparams_fake,
    overload="tensor_qparams",
)
_per_channel = _define_pair(
    "fake_quantize_per_channel_affine",
    "Tensor input, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max",
    (channel_reference, channel_mask_reference),
    _channel_fake,
)
define(
    "fake_quantize_backward(Tensor grad, Tensor mask) -> Tensor",
    reference=backward_reference,
    fake=_backward_fake,
    gradient=True,
)
_BACKWARD = torch.ops.fxquant.fake_quantize_backward.default
differentiate(_BACKWARD, _MaskedGradient.apply)
