"""``fxquant::fake_quantize_*``: quantize and dequantize, with a straight-through gradient.

Each operator has a twin ``*_cachemask`` that also says where the gradient passes; with gradients wanted, the plain one
runs its twin. The mask is a byte per element: less to keep, and less to read again, than the input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import Arguments, Call, define_operator, operator_of, schema
from fxquant.kernels.checks import check_dtype, check_limits, check_zero_points
from fxquant.kernels.fake_quantize.float_qparams import fake_quantize_float_qparams
from fxquant.kernels.gradient import Differentiable, below_autograd, differentiate, in_backward
from fxquant.kernels.layout import like
from fxquant.kernels.library import define
from fxquant.kernels.quantize.affine import FLOATS, make_affine_qparams
from fxquant.kernels.quantize.qparams import check_along, checked_qparams

TENSOR_OP = "fxquant::fake_quantize_per_tensor_affine"
CHANNEL_OP = "fxquant::fake_quantize_per_channel_affine"
BACKWARD_OP = "fxquant::fake_quantize_backward"


def fake_quantize_per_tensor_affine(
    input: Tensor, scale: float | Tensor, zero_point: int | Tensor, quant_min: int, quant_max: int
) -> Tensor:
    """Quantize and dequantize: ``(clamp(round(x * (1 / scale)) + zero_point) - zero_point) * scale``.

    Rounding is to nearest, ties to even, and comes before the zero point is added. NaN becomes ``quant_min``;
    infinities saturate. The gradient is straight-through: 1 where the rounded value lies in ``[quant_min, quant_max]``,
    else 0; ``scale`` and ``zero_point`` get none.

    Args:
        input: float32, float64, float16 or bfloat16, any shape and strides. Computed in float64 if it is that, else in
            float32.
        scale: > 0; a number, or a tensor [1] or [] of any floating dtype; rounded to float32.
        zero_point: Within the limits; a number if ``scale`` is one, else a tensor [1] or [] of any integer
            dtype, or of a floating one with integral values.
        quant_min: Smallest quantized value; an int32.
        quant_max: Largest quantized value; an int32.

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
    """Quantize and dequantize with qparams per index of one dimension.

    As :func:`fake_quantize_per_tensor_affine`, but for:

    Args:
        input: At least 1-dimensional.
        scale: [C] of any floating dtype, C = ``input.shape[axis]``, > 0; rounded to float32.
        zero_point: [C] of any integer dtype, within the limits. Or of a floating dtype: any numbers,
            which are added before rounding (``kernels.float_qparams``, in Python; the operator itself takes integral
            values only, as integers).
        axis: The dimension of the channels; negative ones count from the end.
        quant_min: Smallest quantized value; an int32.
        quant_max: Largest quantized value; an int32.

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


class FakeQuantizeCall(Call[tuple[Tensor, Tensor]]):
    """A call that gives fake-quantized values, and a mask of where the gradient passes."""

    results: ClassVar[str] = "(Tensor output, Tensor mask)"
    gradient: ClassVar[bool] = True

    input: Tensor
    quant_min: int
    quant_max: int

    def check(self) -> int | None:
        """Check the arguments but for the values of tensors, and return the axis of the channels."""
        raise NotImplementedError

    def qparams(self) -> tuple[Tensor, Tensor]:
        """Return the scale as float32 and the zero point as int32, and check their values."""
        raise NotImplementedError

    def empty_result(self) -> tuple[Tensor, Tensor]:
        self.check()
        return torch.empty_like(self.input), torch.empty_like(self.input, dtype=torch.bool)

    def reference(self) -> tuple[Tensor, Tensor]:
        axis, x = self.check(), self.input
        qparams = make_affine_qparams(self.op, "input", x, *self.qparams(), axis, self.quant_min, self.quant_max)
        q = qparams.round_to_quantized(x)
        return like(x, qparams.dequantize(qparams.saturate(q)).to(x.dtype)), like(x, qparams.inside(q))


@dataclass(eq=False, repr=False)
class FakeQuantizeTensorCall(FakeQuantizeCall):
    """Fake-quantize per tensor, with qparams that are numbers."""

    op: ClassVar[str] = TENSOR_OP

    input: Tensor
    scale: float
    zero_point: int
    quant_min: int
    quant_max: int

    def check(self) -> None:
        check_dtype(self.op, "input", self.input, FLOATS)
        check_limits(self.op, self.quant_min, self.quant_max)
        check_zero_points(self.op, self.zero_point, self.quant_min, self.quant_max)

    def qparams(self) -> tuple[Tensor, Tensor]:
        scale = torch.tensor(self.scale, dtype=torch.float32, device=self.input.device)
        return scale, torch.tensor(self.zero_point, dtype=torch.int32, device=self.input.device)


@dataclass(eq=False, repr=False)
class FakeQuantizeTensorQParamsCall(FakeQuantizeCall):
    """Fake-quantize per tensor, with qparams that are tensors of one element."""

    op: ClassVar[str] = TENSOR_OP

    input: Tensor
    scale: Tensor
    zero_point: Tensor
    quant_min: int
    quant_max: int

    def check(self) -> int | None:
        check_dtype(self.op, "input", self.input, FLOATS)
        check_limits(self.op, self.quant_min, self.quant_max)
        return check_along(self.op, self.input, self.scale, self.zero_point, None)

    def qparams(self) -> tuple[Tensor, Tensor]:
        return checked_qparams(self.op, self.scale, self.zero_point, self.quant_min, self.quant_max)


@dataclass(eq=False, repr=False)
class FakeQuantizeChannelCall(FakeQuantizeCall):
    """Fake-quantize per channel."""

    op: ClassVar[str] = CHANNEL_OP

    input: Tensor
    scale: Tensor
    zero_point: Tensor
    axis: int
    quant_min: int
    quant_max: int

    def check(self) -> int | None:
        check_dtype(self.op, "input", self.input, FLOATS)
        check_limits(self.op, self.quant_min, self.quant_max)
        return check_along(self.op, self.input, self.scale, self.zero_point, self.axis)

    def qparams(self) -> tuple[Tensor, Tensor]:
        return checked_qparams(self.op, self.scale, self.zero_point, self.quant_min, self.quant_max)


@dataclass(eq=False, repr=False)
class FakeQuantizeBackwardCall(Call[Tensor]):
    """Take ``grad`` where ``mask``, else 0 whatever comes in; in the memory format of ``mask``."""

    op: ClassVar[str] = BACKWARD_OP
    gradient: ClassVar[bool] = True

    grad: Tensor
    mask: Tensor

    def empty_result(self) -> Tensor:
        grad, mask = self.grad, self.mask
        check_dtype(self.op, "grad", grad, FLOATS)
        check_dtype(self.op, "mask", mask, (torch.bool,))
        if grad.shape != mask.shape:
            expected = f"{list(grad.shape)}, as grad"
            raise KernelError(f"{self.op}: mask has the wrong shape", got=list(mask.shape), expected=expected)
        return torch.empty_like(mask, dtype=grad.dtype)

    def reference(self) -> Tensor:
        self.empty_result()
        return like(self.mask, torch.where(self.mask, self.grad, self.grad.new_zeros(())))


def _define_pair(
    record: Callable[Arguments, FakeQuantizeCall], name: str, overload: str = ""
) -> tuple[Callable[..., Tensor], Callable[Arguments, Tensor], Callable[Arguments, tuple[Tensor, Tensor]]]:
    """Define an operator, and its twin that gives the mask too, with their gradients.

    Returns:
        The function to call in place of the operator, and the references of both.
    """
    assert isinstance(record, type)
    suffix = f".{overload}" if overload else ""
    _, mask_reference = define_operator(record, f"{name}_cachemask{suffix}")

    def reference(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        return mask_reference(*args, **kwargs)[0]

    def empty_result(*args: Any, **kwargs: Any) -> Tensor:
        return record(*args, **kwargs).empty_result()[0]

    define(schema(name + suffix, record, "Tensor"), reference=reference, fake=empty_result, gradient=True)
    plain, twin = operator_of(name + suffix), operator_of(f"{name}_cachemask{suffix}")
    differentiate(twin, lambda *args: StraightThrough.apply(twin, *args))
    return differentiate(plain, lambda *args: _StraightThroughAlone.apply(twin, *args)), reference, mask_reference


class StraightThrough(Differentiable):
    """Gives the result and the mask of an operator ``*_cachemask``; the gradient passes where the mask says so."""

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
    """Does the same without the mask among its results, which costs less."""

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


_per_tensor, tensor_reference, tensor_mask_reference = _define_pair(
    FakeQuantizeTensorCall, "fake_quantize_per_tensor_affine"
)
_per_tensor_qparams, tensor_qparams_reference, tensor_qparams_mask_reference = _define_pair(
    FakeQuantizeTensorQParamsCall, "fake_quantize_per_tensor_affine", overload="tensor_qparams"
)
_per_channel, channel_reference, channel_mask_reference = _define_pair(
    FakeQuantizeChannelCall, "fake_quantize_per_channel_affine"
)
_, backward_reference = define_operator(FakeQuantizeBackwardCall)
_BACKWARD = torch.ops.fxquant.fake_quantize_backward.default
differentiate(_BACKWARD, _MaskedGradient.apply)
