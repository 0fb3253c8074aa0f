"""``fxquant::add`` and ``fxquant::mul``: sum and product of two int8 tensors, each with its own qparams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import RequantizingCall, check_qparams, check_same_dtype, check_stored, float32
from fxquant.kernels.call import define_operator


@dataclass(eq=False, repr=False)
class BinaryCall(RequantizingCall):
    """Compute on two tensors of quantized values, each with its own qparams, and requantize the result.

    A subclass says what is computed. The result has the dtype of ``a``, the broadcast shape, and the layout of ``a`` if
    ``a`` has that shape, else of ``b`` if ``b`` has it, else it is contiguous.
    """

    a: Tensor
    """uint8 or int8, any shape."""
    a_scale: float
    """Scale of ``a``, rounded to float32 first, as every scale is."""
    a_zero_point: int
    """Zero point, inside the range of the dtype."""
    b: Tensor
    """Has the dtype of ``a``; the shapes broadcast."""
    b_scale: float
    b_zero_point: int
    scale: float
    """Scale of the result."""
    zero_point: int
    quant_min: int
    """Smallest integer of the result, inside the range of the dtype. ``quant_min = zero_point`` is a ReLU."""
    quant_max: int
    """Largest integer of the result."""

    def result(self, a: Tensor, b: Tensor) -> Tensor:
        """Compute the float32 result from ``a - a_zero_point`` and ``b - b_zero_point``, int32 each."""
        raise NotImplementedError

    def empty_result(self) -> Tensor:
        op, a, b = self.op, self.a, self.b
        check_stored(op, "a", a)
        check_same_dtype(op, "b", b, a)
        check_qparams(op, "a_", self.a_scale, self.a_zero_point, a.dtype)
        check_qparams(op, "b_", self.b_scale, self.b_zero_point, b.dtype)
        self.check_output(a.dtype)
        shape = broadcast_shape(op, a, b)
        for lead in (a, b):
            if lead.shape == shape:
                return torch.empty_like(lead)
        return a.new_empty(shape)

    def reference(self) -> Tensor:
        y = self.empty_result()
        off_a, off_b = self.a.to(torch.int32) - self.a_zero_point, self.b.to(torch.int32) - self.b_zero_point
        return y.copy_(self.requantize(self.result(off_a, off_b), y.dtype))


class AddCall(BinaryCall):
    """Add two tensors of quantized values, and requantize the sum.

    In float32, each step rounded: ``r = float(qa - za) * sa + float(qb - zb) * sb``, then
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even.

    Source:
        Jacob et al., arXiv:1712.05877, section A.2; in float32 instead of fixed point.
    """

    op: ClassVar[str] = "fxquant::add"

    def result(self, a: Tensor, b: Tensor) -> Tensor:
        return a.to(torch.float32) * float32(self.a_scale) + b.to(torch.float32) * float32(self.b_scale)


class MulCall(BinaryCall):
    """Multiply two tensors of quantized values, and requantize the product.

    ``r = float((qa - za) * (qb - zb)) * (sa * sb)``: the integer product is exact, the rest is float32, each step
    rounded; then ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even.

    Source:
        Jacob et al., arXiv:1712.05877, eq. 4 for a single product; in float32 instead of fixed point.
    """

    op: ClassVar[str] = "fxquant::mul"

    def result(self, a: Tensor, b: Tensor) -> Tensor:
        return (a * b).to(torch.float32) * float32(float32(self.a_scale) * float32(self.b_scale))


def broadcast_shape(op: str, a: Tensor, b: Tensor) -> torch.Size:
    """Return the common shape of ``a`` and ``b``; sizes of 1 and missing leading dimensions are repeated."""
    dims = max(a.dim(), b.dim())
    padded = [[1] * (dims - x.dim()) + list(x.shape) for x in (a, b)]
    if not all(m == n or m == 1 or n == 1 for m, n in zip(*padded, strict=True)):
        raise KernelError(
            f"{op}: a and b do not broadcast",
            got=f"{list(a.shape)} and {list(b.shape)}",
            expected="sizes that are equal or 1, from the last dimension on",
        )
    return torch.broadcast_shapes(a.shape, b.shape)


add, add_reference = define_operator(AddCall)
mul, mul_reference = define_operator(MulCall)
