"""``fxquant::fake_quantize_folded``: a weight, rounded as it will be once a batch norm is folded into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import Call, Result, define_operator
from fxquant.kernels.checks import check_count, check_dtype, check_gradient, check_limits
from fxquant.kernels.gradient import Differentiable, below_autograd, differentiate, in_backward, refuse_derivative
from fxquant.kernels.quantize.affine import FLOATS, AffineQParams, make_affine_qparams, real
from fxquant.kernels.quantize.qparams import along, checked_qparams


class FoldedCall(Call[Result]):
    """A call of the operator or of its gradient. Each record declares these arguments in their place."""

    gradient: ClassVar[bool] = True

    input: Tensor
    factor: Tensor
    scale: Tensor
    zero_point: Tensor
    quant_min: int
    quant_max: int

    def check(self) -> None:
        """Check the arguments but for the values of tensors."""
        op, input, scale = self.op, self.input, self.scale
        check_dtype(op, "input", input, FLOATS)
        if input.dim() == 0:
            raise KernelError(f"{op}: input has no channels", got="[]", expected="at least one dimension")
        check_count(op, "factor", self.factor, input.shape[0])
        channels = 1 if scale.numel() == 1 else input.shape[0]
        check_count(op, "scale", scale, channels)
        check_count(op, "zero_point", self.zero_point, channels)
        check_limits(op, self.quant_min, self.quant_max)

    def qparams(self) -> tuple[AffineQParams, Tensor]:
        """Return the qparams and the factor, in a shape that broadcasts and the dtype of the computation."""
        scale, zero_point = checked_qparams(self.op, self.scale, self.zero_point, self.quant_min, self.quant_max)
        if scale.numel() == 1:
            channels = self.input.shape[0]
            scale, zero_point = scale.reshape(1).expand(channels), zero_point.reshape(1).expand(channels)
        x = real(self.input)
        qparams = make_affine_qparams(self.op, "input", x, scale, zero_point, 0, self.quant_min, self.quant_max)
        return qparams, along(self.factor, x, 0).to(x.dtype)


@dataclass(eq=False, repr=False)
class FakeQuantizeFoldedCall(FoldedCall[Tensor]):
    """Compute ``fake_quantize(input * factor) / factor`` in one pass, and so its gradient.

    The product is what a folded weight is: quantized values are those of ``quantize(input * factor)``, to the bit. The
    gradient of ``input`` is straight-through; that of ``factor`` sums the incoming gradient times
    ``((input where not clipped, else 0) - y) / factor`` over a channel, in float64, whatever the number of threads.

    Returns:
        The dtype and shape of ``input``, contiguous; always a new tensor.

    Raises:
        RuntimeError: dtype, shape, limits or device do not fit; the message names the argument.

    Source:
        Krishnamoorthi, arXiv:1806.08342, section 3.2.2.
    """

    op: ClassVar[str] = "fxquant::fake_quantize_folded"

    input: Tensor
    """float32, float64, float16 or bfloat16 [C, ...]."""
    factor: Tensor
    """[C] of a floating dtype, not 0: gamma / sqrt(running_var + eps)."""
    scale: Tensor
    """[1] or [C] of any floating dtype, > 0: the scale of ``input * factor``; rounded to float32."""
    zero_point: Tensor
    """[1] or [C], as ``scale``, of any integer dtype, within the limits."""
    quant_min: int
    """Smallest quantized value; an int32."""
    quant_max: int
    """Largest quantized value; an int32."""

    def empty_result(self) -> Tensor:
        self.check()
        return torch.empty_like(self.input, memory_format=torch.contiguous_format)

    def reference(self) -> Tensor:
        self.empty_result()
        qparams, factor = self.qparams()
        y = qparams.dequantize(qparams.saturate(qparams.round_to_quantized(real(self.input) * factor))) / factor
        return y.to(self.input.dtype).contiguous()


@dataclass(eq=False, repr=False)
class FakeQuantizeFoldedBackwardCall(FoldedCall[tuple[Tensor, Tensor]]):
    """Compute the gradients of ``input`` and ``factor``."""

    op: ClassVar[str] = "fxquant::fake_quantize_folded_backward"
    results: ClassVar[str] = "(Tensor, Tensor)"

    grad: Tensor
    input: Tensor
    factor: Tensor
    scale: Tensor
    zero_point: Tensor
    quant_min: int
    quant_max: int

    def empty_result(self) -> tuple[Tensor, Tensor]:
        check_gradient(self.op, self.grad, self.input)
        self.check()
        of_input = torch.empty_like(self.input, memory_format=torch.contiguous_format)
        return of_input, torch.empty_like(self.factor)

    def reference(self) -> tuple[Tensor, Tensor]:
        self.empty_result()
        qparams, factor = self.qparams()
        x, incoming = real(self.input), real(self.grad)
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        q = qparams.round_to_quantized(x * factor)
        inside = qparams.inside(q)
        slope = (torch.where(inside, x, zero) - qparams.dequantize(qparams.saturate(q)) / factor) / factor
        of_factor = (incoming * slope).double()
        of_factor = of_factor.flatten(1).sum(1) if x.dim() > 1 else of_factor
        of_input = torch.where(inside, incoming, zero).to(self.input.dtype).contiguous()
        return of_input, of_factor.to(self.factor.dtype)


class _Folded(Differentiable):
    """Saves the arguments, of which the graph holds the weight anyway, and nothing else."""

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


fake_quantize_folded, reference = define_operator(FakeQuantizeFoldedCall)
_, backward_reference = define_operator(FakeQuantizeFoldedBackwardCall)
_FORWARD = torch.ops.fxquant.fake_quantize_folded.default
_BACKWARD = torch.ops.fxquant.fake_quantize_folded_backward.default
refuse_derivative(_BACKWARD, tensors=3)
differentiate(_FORWARD, _Folded.apply, tensors=2)
