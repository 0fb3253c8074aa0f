"""``fxquant::fake_quantize_folded``: a weight, rounded as it will be once a batch norm is folded into it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.checks import check_count, check_dtype, check_limits, check_zero_points
from fxquant.kernels.gradient import Differentiable, below_autograd, differentiate, in_backward, refuse_derivative
from fxquant.kernels.library import define
from fxquant.kernels.quantize.affine import FLOATS, AffineQParams, make_affine_qparams, real
from fxquant.kernels.quantize.qparams import along, scale_values, zero_point_values

OP = "fxquant::fake_quantize_folded"
BACKWARD_OP = "fxquant::fake_quantize_folded_backward"


def fake_quantize_folded(
    input: Tensor, factor: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int
) -> Tensor:
    """``fake_quantize(input * factor) / factor``, in one pass, and so is its gradient.

    The product is what a folded weight is: integers are those of ``quantize(input * factor)``, to the bit. The gradient
    of ``input`` is straight-through; that of ``factor`` sums the incoming gradient times
    ``((input where not clipped, else 0) - y) / factor`` over a channel, in float64, whatever the number of threads.

    Args:
        input: float32, float64, float16 or bfloat16 [C, ...].
        factor: [C] of a floating dtype, not 0: gamma / sqrt(running_var + eps).
        scale: [1] or [C] of any floating dtype, > 0, real units per step of ``input * factor``; rounded to float32.
        zero_point: [1] or [C], as ``scale``, of any integer dtype, within the limits.
        quant_min: Smallest step; an int32.
        quant_max: Largest step; an int32.

    Returns:
        The dtype and shape of ``input``, contiguous; always a new tensor.

    Raises:
        RuntimeError: dtype, shape, limits or device do not fit; the message names the argument.

    Source:
        Krishnamoorthi, arXiv:1806.08342, section 3.2.2.
    """
    return torch.ops.fxquant.fake_quantize_folded.default(input, factor, scale, zero_point, quant_min, quant_max)


def reference(
    input: Tensor, factor: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int
) -> Tensor:
    """In pure torch, on any device."""
    qparams, factors = _qparams(OP, input, factor, scale, zero_point, quant_min, quant_max)
    y = qparams.values(qparams.saturate(qparams.steps(real(input) * factors))) / factors
    return y.to(input.dtype).contiguous()


def backward_reference(
    grad: Tensor,
    input: Tensor,
    factor: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor]:
    """The gradients of ``input`` and ``factor``."""
    _check_gradient(grad, input)
    qparams, factors = _qparams(BACKWARD_OP, input, factor, scale, zero_point, quant_min, quant_max)
    x, incoming = real(input), real(grad)
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    steps = qparams.steps(x * factors)
    inside = qparams.inside(steps)
    slope = (torch.where(inside, x, zero) - qparams.values(qparams.saturate(steps)) / factors) / factors
    of_factor = (incoming * slope).double().flatten(1).sum(1) if x.dim() > 1 else (incoming * slope).double()
    of_input = torch.where(inside, incoming, zero).to(input.dtype).contiguous()
    return of_input, of_factor.to(factor.dtype)


def _qparams(
    op: str, input: Tensor, factor: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int
) -> tuple[AffineQParams, Tensor]:
    """The grid and the factors, in a shape that broadcasts and the dtype of the computation."""
    _check(op, input, factor, scale, zero_point, quant_min, quant_max)
    zero_points = zero_point_values(op, zero_point)
    check_zero_points(op, zero_points, quant_min, quant_max)
    scales = scale_values(scale)
    channels = input.shape[0]
    if scale.numel() == 1:
        scales, zero_points = scales.reshape(1).expand(channels), zero_points.reshape(1).expand(channels)
    x = real(input)
    qparams = make_affine_qparams(op, "input", x, scales, zero_points, 0, quant_min, quant_max)
    return qparams, along(factor, x, 0).to(x.dtype)


def _check(
    op: str, input: Tensor, factor: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int
) -> None:
    check_dtype(op, "input", input, FLOATS)
    if input.dim() == 0:
        raise KernelError(f"{op}: input has no channels", got="[]", expected="at least one dimension")
    check_count(op, "factor", factor, input.shape[0])
    qparams = 1 if scale.numel() == 1 else input.shape[0]
    check_count(op, "scale", scale, qparams)
    check_count(op, "zero_point", zero_point, qparams)
    check_limits(op, quant_min, quant_max)


def _check_gradient(grad: Tensor, input: Tensor) -> None:
    for name in ("dtype", "shape"):
        got, expected = getattr(grad, name), getattr(input, name)
        if got != expected:
            raise KernelError(f"{BACKWARD_OP}: grad has the wrong {name}", got=got, expected=f"{expected}, as input")


def _fake(input: Tensor, factor: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int) -> Tensor:
    _check(OP, input, factor, scale, zero_point, quant_min, quant_max)
    return torch.empty_like(input, memory_format=torch.contiguous_format)


def _backward_fake(
    grad: Tensor,
    input: Tensor,
    factor: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor]:
    _check_gradient(grad, input)
    _check(BACKWARD_OP, input, factor, scale, zero_point, quant_min, quant_max)
    return torch.empty_like(input, memory_format=torch.contiguous_format), torch.empty_like(factor)


class _Folded(Differentiable):
    """Keeps what goes in, of which the graph holds the weight anyway, and nothing else."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, factor: Tensor, scale: Tensor, zero_point: Tensor, *limits: int) -> Tensor:
        ctx.save_for_backward(input, factor, scale, zero_point)
        ctx.limits = limits
        return below_autograd(_FORWARD, input, factor, scale, zero_point, *limits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, *qparams = ctx.saved_tensors
        of_input, of_factor = in_backward(_BACKWARD, grad.to(input.dtype), input, *qparams, *ctx.limits)
        wanted = ctx.needs_input_grad
        return of_input if wanted[0] else None, of_factor if wanted[1] else None, None, None, None, None


_ARGUMENTS = "Tensor input, Tensor factor, Tensor scale, Tensor zero_point, int quant_min, int quant_max"
define(f"fake_quantize_folded({_ARGUMENTS}) -> Tensor", reference=reference, fake=_fake, gradient=True)
define(
    f"fake_quantize_folded_backward(Tensor grad, {_ARGUMENTS}) -> (Tensor, Tensor)",
    reference=backward_reference,
    fake=_backward_fake,
    gradient=True,
)
_FORWARD = torch.ops.fxquant.fake_quantize_folded.default
_BACKWARD = torch.ops.fxquant.fake_quantize_folded_backward.default
refuse_derivative(_BACKWARD, tensors=3)
differentiate(_FORWARD, _Folded.apply, tensors=2)
