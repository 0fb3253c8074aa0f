"""``fxquant::matmul``: the product of two int8 activations, exact on every CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import check_output, check_qparams, check_stored, float32, requantize
from fxquant.kernels.call import OperatorCall, define_operator
from fxquant.kernels.checks import check_dtype

OP = "fxquant::matmul"


MOST_PRODUCTS = (2**31 - 1) // (255 * 255)
"""Products of steps from two zero points that an int32 sum holds for certain."""


@dataclass(eq=False, repr=False)
class MatmulCall(OperatorCall):
    """Multiply two matrices of quantized values, or batches of them, as ``torch.matmul`` does those they stand for.

    The sum ``acc = sum((qa - za) * (qb - zb))`` is exact, in int32. Then, in float32, each step rounded, ties to even:
    ``r = float(acc) * (sa * sb)`` and ``q = clamp(round(r * (1 / y_scale)) + y_zero_point, quant_min, quant_max)``.

    Returns:
        [..., M, N] of ``dtype``, contiguous; without M or N where ``a`` or ``b`` has one dimension.

    Source:
        Jacob et al., arXiv:1712.05877, section 2.3.
    """

    op: ClassVar[str] = OP

    a: Tensor
    """uint8 or int8 [..., M, K], or [K]; any strides."""
    a_scale: float
    """Scale of ``a``, rounded to float32 first, as every scale is."""
    a_zero_point: int
    """Zero point of ``a``, inside the range of its dtype."""
    b: Tensor
    """uint8 or int8 [..., K, N], or [K]; any strides (a transposed view is read as it lies). Leading dimensions
    broadcast. K is at most ``MOST_PRODUCTS``."""
    b_scale: float
    b_zero_point: int
    y_scale: float
    y_zero_point: int
    quant_min: int
    """Smallest integer of the output, inside the range of ``dtype``."""
    quant_max: int
    """Largest integer of the output."""
    dtype: torch.dtype
    """uint8 or int8: how the output is stored. float32: the result is ``r``."""

    def empty_result(self) -> Tensor:
        check_stored(self.op, "a", self.a)
        check_stored(self.op, "b", self.b)
        check_qparams(self.op, "a_", self.a_scale, self.a_zero_point, self.a.dtype)
        check_qparams(self.op, "b_", self.b_scale, self.b_zero_point, self.b.dtype)
        check_dtype(self.op, "dtype", self.dtype, (torch.uint8, torch.int8, torch.float32))
        if self.dtype != torch.float32:
            check_output(self.op, self.y_scale, self.y_zero_point, self.quant_min, self.quant_max, self.dtype)
        return torch.empty(result_shape(self.a, self.b), dtype=self.dtype, device=self.a.device)

    def reference(self) -> Tensor:
        y = self.empty_result()
        # float64 holds every sum of so few products exactly.
        sums = torch.matmul(self.a.to(torch.float64) - self.a_zero_point, self.b.to(torch.float64) - self.b_zero_point)
        real = sums.to(torch.float32) * float32(float32(self.a_scale) * float32(self.b_scale))
        if self.dtype == torch.float32:
            return y.copy_(real)
        return y.copy_(requantize(real, self.y_scale, self.y_zero_point, self.quant_min, self.quant_max, self.dtype))


def result_shape(a: Tensor, b: Tensor) -> list[int]:
    """Shape of ``torch.matmul(a, b)``.

    Raises:
        KernelError: the shapes do not fit, or a sum could leave int32.
    """
    both = f"{list(a.shape)} and {list(b.shape)}"
    if a.dim() == 0 or b.dim() == 0:
        raise KernelError(f"{OP}: a and b cannot be multiplied", got=both, expected="at least one dimension each")
    k_size, rows = a.shape[-1], list(a.shape[-2:-1])
    if b.shape[-2 if b.dim() > 1 else -1] != k_size:
        raise KernelError(f"{OP}: a and b cannot be multiplied", got=both, expected="[..., M, K] and [..., K, N]")
    if k_size > MOST_PRODUCTS:
        raise KernelError(f"{OP}: a sum could leave int32", got=f"K = {k_size}", expected=f"at most {MOST_PRODUCTS}")
    batches = [list(x.shape[:-2]) for x in (a, b)]
    dims = max(map(len, batches))
    padded = [[1] * (dims - len(sizes)) + sizes for sizes in batches]
    if not all(m == n or m == 1 or n == 1 for m, n in zip(*padded, strict=True)):
        raise KernelError(
            f"{OP}: the batches of a and b do not broadcast", got=both, expected="leading sizes that are equal or 1"
        )
    return [n if m == 1 else m for m, n in zip(*padded, strict=True)] + rows + list(b.shape[-1:] if b.dim() > 1 else ())


matmul, reference = define_operator(MatmulCall)
