"""``fxquant::fake_quantize_learnable_*``: fake quantization whose scale and zero point get gradients too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import Call, define_operator
from fxquant.kernels.checks import check_dtype, check_gradient, check_limits
from fxquant.kernels.gradient import Differentiable, below_autograd, differentiate, in_backward, refuse_derivative
from fxquant.kernels.layout import like
from fxquant.kernels.library import compose
from fxquant.kernels.quantize.affine import FLOATS, AffineQParams, make_affine_qparams, real
from fxquant.kernels.quantize.qparams import check_along, checked_qparams

TENSOR_OP = "fxquant::fake_quantize_learnable_per_tensor_affine"
CHANNEL_OP = "fxquant::fake_quantize_learnable_per_channel_affine"


def fake_quantize_learnable_per_tensor_affine(
    input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    """Fake-quantize per tensor, with gradients for scale and zero point as well as for the values.

    The value is that of :func:`~fxquant.kernels.fake_quantize_per_tensor_affine`, at the zero point rounded to nearest
    (ties to even) and clamped to the limits. The gradient of ``input`` is straight-through. That of ``scale`` sums over
    all elements the incoming gradient times ``(y - input) / scale`` where the rounded value lies inside the limits, and
    times ``limit - zero_point`` where it was clipped; that of ``zero_point`` sums the incoming gradient times
    ``-scale`` where it was clipped. Sums are float64, and do not depend on the number of threads.

    Args:
        input: float32, float64, float16 or bfloat16, any shape and strides.
        scale: [1] or [] of any floating dtype, > 0; rounded to float32.
        zero_point: [1] or [] of a floating dtype; need not be a whole number.
        quant_min: Smallest quantized value, an int32 <= 0.
        quant_max: Largest quantized value, an int32 >= 0.
        grad_factor: Times which the gradients of ``scale`` and ``zero_point`` are taken.

    Returns:
        The dtype, shape and memory format of ``input``; always a new tensor.

    Raises:
        RuntimeError: dtype, shape, limits or device do not fit; the message names the argument.

    Source:
        Esser et al., "Learned Step Size Quantization", arXiv:1902.08153, eq. 3; zero point: Bhalgat et al., LSQ+,
        arXiv:2004.09576, eq. 6. Signature: ``torch._fake_quantize_learnable_per_tensor_affine``.
    """
    return _per_tensor(input, scale, zero_point, quant_min, quant_max, grad_factor)


def fake_quantize_learnable_per_channel_affine(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    """Fake-quantize per index of one dimension, with gradients for every scale and zero point.

    As :func:`fake_quantize_learnable_per_tensor_affine`, but for:

    Args:
        input: At least 1-dimensional.
        scale: [C], C = ``input.shape[axis]``.
        zero_point: [C].
        axis: The dimension of the channels; negative ones count from the end.
        quant_min: Smallest quantized value, an int32 <= 0.
        quant_max: Largest quantized value, an int32 >= 0.
        grad_factor: Times which the gradients of ``scale`` and ``zero_point`` are taken.
    """
    return _per_channel(input, scale, zero_point, axis, quant_min, quant_max, grad_factor)


def fake_quantize_learnable_per_tensor_affine_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of ``input``, ``scale`` and ``zero_point`` for that of the result, ``grad``, in one pass.

    ``grad`` has the shape and dtype of ``input``; the rest is as in :func:`fake_quantize_learnable_per_tensor_affine`.
    """
    zero_point = rounded_zero_point(zero_point, quant_min, quant_max)
    return torch.ops.fxquant.fake_quantize_learnable_backward.default(
        grad, input, scale, zero_point, None, quant_min, quant_max, grad_factor
    )


def fake_quantize_learnable_per_channel_affine_backward(
    grad: Tensor,
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the same per index of ``axis``: gradients of ``scale`` and ``zero_point`` are [C]."""
    zero_point = rounded_zero_point(zero_point, quant_min, quant_max)
    return torch.ops.fxquant.fake_quantize_learnable_backward.default(
        grad, input, scale, zero_point, axis, quant_min, quant_max, grad_factor
    )


# as torch spells them
_fake_quantize_learnable_per_tensor_affine = fake_quantize_learnable_per_tensor_affine
_fake_quantize_learnable_per_channel_affine = fake_quantize_learnable_per_channel_affine
_fake_quantize_learnable_per_tensor_affine_backward = fake_quantize_learnable_per_tensor_affine_backward
_fake_quantize_learnable_per_channel_affine_backward = fake_quantize_learnable_per_channel_affine_backward


def rounded_zero_point(zero_point: Tensor, quant_min: int, quant_max: int) -> Tensor:
    """Return the nearest whole zero point, ties to even, within the limits."""
    return zero_point.detach().round().clamp_(quant_min, quant_max)


def tensor_forward(
    input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    """Compute the value alone, per tensor: that of the operator without gradients for the qparams."""
    check_learnable_limits(TENSOR_OP, quant_min, quant_max)
    return torch.ops.fxquant.fake_quantize_per_tensor_affine.tensor_qparams(
        input, scale, rounded_zero_point(zero_point, quant_min, quant_max), quant_min, quant_max
    )


def channel_forward(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    """Compute the value alone, per channel."""
    check_learnable_limits(CHANNEL_OP, quant_min, quant_max)
    return torch.ops.fxquant.fake_quantize_per_channel_affine.default(
        input, scale, rounded_zero_point(zero_point, quant_min, quant_max), axis, quant_min, quant_max
    )


@dataclass(eq=False, repr=False)
class FakeQuantizeLearnableBackwardCall(Call[tuple[Tensor, Tensor, Tensor]]):
    """Compute the gradients of ``input``, ``scale`` and ``zero_point``, per tensor or per channel.

    ``zero_point`` holds whole numbers. Sums are taken in float64; the reference takes them in torch's order.
    """

    op: ClassVar[str] = "fxquant::fake_quantize_learnable_backward"
    results: ClassVar[str] = "(Tensor, Tensor, Tensor)"
    gradient: ClassVar[bool] = True

    grad: Tensor
    input: Tensor
    scale: Tensor
    zero_point: Tensor
    axis: int | None
    quant_min: int
    quant_max: int
    grad_factor: float

    def check(self) -> int | None:
        """Check the arguments, and return the axis counted from the first dimension."""
        check_dtype(self.op, "input", self.input, FLOATS)
        check_gradient(self.op, self.grad, self.input)
        check_learnable_limits(self.op, self.quant_min, self.quant_max)
        return check_along(self.op, self.input, self.scale, self.zero_point, self.axis)

    def empty_result(self) -> tuple[Tensor, Tensor, Tensor]:
        self.check()
        return torch.empty_like(self.input), torch.empty_like(self.scale), torch.empty_like(self.zero_point)

    def reference(self) -> tuple[Tensor, Tensor, Tensor]:
        axis, input = self.check(), self.input
        limits = (self.quant_min, self.quant_max)
        scale, zero_point = checked_qparams(self.op, self.scale, self.zero_point, *limits)
        qparams = make_affine_qparams(self.op, "input", input, scale, zero_point, axis, *limits)
        x, incoming = real(input), real(self.grad)
        q = qparams.round_to_quantized(input)
        inside = qparams.inside(q)
        zero = torch.zeros((), dtype=incoming.dtype, device=incoming.device)
        # The summands of both sums: a clipped value moves with its limit, which moves with the zero point.
        of_scale = (incoming * _slope_of_scale(x, q, inside, qparams)).double()
        clipped = torch.where(inside, zero, incoming).double()
        # The sums of each channel, times the factor.
        reduced = [d for d in range(input.dim()) if d != axis]
        sum_of_scale, sum_of_clipped = (
            (values.sum(reduced) if reduced else values).reshape(scale.shape) for values in (of_scale, clipped)
        )
        of_zero_point = (sum_of_clipped * self.grad_factor * -scale.double()).reshape(zero_point.shape)
        return (
            like(input, torch.where(inside, incoming, zero).to(input.dtype)),
            (sum_of_scale * self.grad_factor).float().to(self.scale.dtype),
            of_zero_point.float().to(self.zero_point.dtype),
        )


def _slope_of_scale(x: Tensor, q: Tensor, inside: Tensor, qparams: AffineQParams) -> Tensor:
    """Differentiate each value by the scale: the rounding error in quantized units, or how far the limit is from 0."""
    clipped = qparams.saturate(q)
    return torch.where(inside, (qparams.dequantize(clipped) - x) * qparams.inverse, clipped - qparams.zero_point)


def check_learnable_limits(op: str, quant_min: int, quant_max: int) -> None:
    """Check that the limits hold 0: otherwise a zero point that is learned could not stay within them."""
    check_limits(op, quant_min, quant_max)
    if quant_min > 0 or quant_max < 0:
        raise KernelError(
            f"{op}: the limits do not hold 0",
            got=f"{quant_min} and {quant_max}",
            expected="quant_min <= 0 <= quant_max",
        )


class _Learnable(Differentiable):
    """Computes the value of one of the two operators; saves its input, which the graph holds anyway, and no mask."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        axis: int | None,
        quant_min: int,
        quant_max: int,
        grad_factor: float,
    ) -> Tensor:
        zero_points = rounded_zero_point(zero_point, quant_min, quant_max)
        ctx.save_for_backward(input, scale, zero_points)
        ctx.qparams = (axis, quant_min, quant_max, grad_factor)
        if axis is None:
            return below_autograd(_TENSOR, input, scale, zero_points, quant_min, quant_max)
        return below_autograd(_CHANNEL, input, scale, zero_points, axis, quant_min, quant_max)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, scale, zero_points = ctx.saved_tensors
        if grad.dtype != input.dtype:
            grad = grad.to(input.dtype)
        gradients = in_backward(_BACKWARD, grad, input, scale, zero_points, *ctx.qparams)
        wanted = (g if needed else None for g, needed in zip(gradients, ctx.needs_input_grad[:3], strict=True))
        return *wanted, None, None, None, None


_TENSOR = torch.ops.fxquant.fake_quantize_per_tensor_affine.tensor_qparams
_CHANNEL = torch.ops.fxquant.fake_quantize_per_channel_affine.default


def _learn_tensor(
    input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float
) -> Tensor:
    check_learnable_limits(TENSOR_OP, quant_min, quant_max)
    return _Learnable.apply(input, scale, zero_point, None, quant_min, quant_max, grad_factor)


def _learn_channel(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int, grad_factor: float
) -> Tensor:
    check_learnable_limits(CHANNEL_OP, quant_min, quant_max)
    return _Learnable.apply(input, scale, zero_point, axis, quant_min, quant_max, grad_factor)


def _define_forward(
    name: str, arguments: str, forward: Callable[..., Tensor], learn: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """Define one of the two operators, and return what to call in its place.

    They have no record: each checks one thing and calls another operator, which has one, so a record would be longer.
    """
    compose(f"{name}({arguments}) -> Tensor", kernel=forward, fake=forward, gradient=True)
    operator = getattr(torch.ops.fxquant, name).default
    return differentiate(operator, learn, tensors=3)


_, backward_reference = define_operator(FakeQuantizeLearnableBackwardCall)
_BACKWARD = torch.ops.fxquant.fake_quantize_learnable_backward.default
refuse_derivative(_BACKWARD, tensors=4)
_per_tensor = _define_forward(
    "fake_quantize_learnable_per_tensor_affine",
    "Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, float grad_factor",
    tensor_forward,
    _learn_tensor,
)
_per_channel = _define_forward(
    "fake_quantize_learnable_per_channel_affine",
    "Tensor input, Tensor scale, Tensor zero_point, int axis, int quant_min, int quant_max, float grad_factor",
    channel_forward,
    _learn_channel,
)
