"""``fxquant::matmul``: the product of two int8 activations, exact on every CPU. Schema, reference, shape function."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import check_output, check_qparams, check_stored, float32, requantize
from fxquant.kernels.checks import check_dtype
from fxquant.kernels.library import define

OP = "fxquant::matmul"

MOST_PRODUCTS = (2**31 - 1) // (255 * 255)
"""Products of steps from two zero points that an int32 sum holds for certain."""


def matmul(
    a: Tensor,
    a_scale: float,
    a_zero_point: int,
    b: Tensor,
    b_scale: float,
    b_zero_point: int,
    y_scale: float,
    y_zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Multiply two matrices of stored integers, or batches of them, as ``torch.matmul`` does those they stand for.

    The sum ``acc = sum((qa - za) * (qb - zb))`` is exact, in int32. Then, in float32, each step rounded, ties to even:
    ``r = float(acc) * (sa * sb)`` and ``q = clamp(round(r * (1 / y_scale)) + y_zero_point, quant_min, quant_max)``.

    Args:
        a: uint8 or int8 [..., M, K], or [K]; any strides.
        a_scale: Real units per step of ``a``, rounded to float32 first, as every scale is.
        a_zero_point: In steps, inside the range of its dtype.
        b: uint8 or int8 [..., K, N], or [K]; any strides (a transposed view is read as it lies). Leading dimensions
            broadcast. K is at most ``MOST_PRODUCTS``.
        b_scale: Of ``b``.
        b_zero_point: Of ``b``.
        y_scale: Of the output; this and the next three are not looked at where ``dtype`` is float32.
        y_zero_point: Of the output.
        quant_min: Smallest integer of the output, inside the range of ``dtype``.
        quant_max: Largest integer of the output.
        dtype: uint8 or int8: how the output is stored. float32: the result is ``r``, in real units.

    Returns:
        [..., M, N] of ``dtype``, contiguous; without M or N where ``a`` or ``b`` has one dimension.

    Raises:
        RuntimeError: a dtype, shape, scale, zero point or limit is not as above; the message names the argument.

    Source:
        Jacob et al., arXiv:1712.05877, section 2.3.
    """
    return torch.ops.fxquant.matmul.default(
        a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, quant_min, quant_max, dtype
    )


def reference(
    a: Tensor,
    a_scale: float,
    a_zero_point: int,
    b: Tensor,
    b_scale: float,
    b_zero_point: int,
    y_scale: float,
    y_zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one."""
    y = empty_output(
        a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, quant_min, quant_max, dtype
    )
    # float64 holds every sum of so few products exactly.
    sums = torch.matmul(a.to(torch.float64) - a_zero_point, b.to(torch.float64) - b_zero_point)
    real = sums.to(torch.float32) * float32(float32(a_scale) * float32(b_scale))
    if dtype == torch.float32:
        return y.copy_(real)
    return y.copy_(requantize(real, y_scale, y_zero_point, quant_min, quant_max, dtype))


def empty_output(
    a: Tensor,
    a_scale: float,
    a_zero_point: int,
    b: Tensor,
    b_scale: float,
    b_zero_point: int,
    y_scale: float,
    y_zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Check the arguments; an empty tensor of the result's shape and dtype."""
    check_stored(OP, "a", a)
    check_stored(OP, "b", b)
    check_qparams(OP, "a_", a_scale, a_zero_point, a.dtype)
    check_qparams(OP, "b_", b_scale, b_zero_point, b.dtype)
    check_dtype(OP, "dtype", dtype, (torch.uint8, torch.int8, torch.float32))
    if dtype != torch.float32:
        check_output(OP, y_scale, y_zero_point, quant_min, quant_max, dtype)
    return torch.empty(result_shape(a, b), dtype=dtype, device=a.device)


def result_shape(a: Tensor, b: Tensor) -> list[int]:
    """Shape of ``torch.matmul(a, b)``.

    Raises:
        KernelError: the shapes do not fit, or a sum could leave int32.
    """
    both = f"{list(a.shape)} and {list(b.shape)}"
    if a.dim() == 0 or b.dim() == 0:
        raise KernelError(f"{OP}: a and b cannot be multiplied", got=both, expected="at least one dimension each")
    depth, rows = a.shape[-1], list(a.shape[-2:-1])
    if b.shape[-2 if b.dim() > 1 else -1] != depth:
        raise KernelError(f"{OP}: a and b cannot be multiplied", got=both, expected="[..., M, K] and [..., K, N]")
    if depth > MOST_PRODUCTS:
        raise KernelError(f"{OP}: a sum could leave int32", got=f"K = {depth}", expected=f"at most {MOST_PRODUCTS}")
    batches = [list(x.shape[:-2]) for x in (a, b)]
    dims = max(map(len, batches))
    padded = [[1] * (dims - len(sizes)) + sizes for sizes in batches]
    if not all(m == n or m == 1 or n == 1 for m, n in zip(*padded, strict=True)):
        raise KernelError(
            f"{OP}: the batches of a and b do not broadcast", got=both, expected="leading sizes that are equal or 1"
        )
    return [n if m == 1 else m for m, n in zip(*padded, strict=True)] + rows + list(b.shape[-1:] if b.dim() > 1 else ())


define(
    "matmul(Tensor a, float a_scale, int a_zero_point, Tensor b, float b_scale, int b_zero_point, float y_scale, "
    "int y_zero_point, int quant_min, int quant_max, ScalarType dtype) -> Tensor",
    reference=reference,
    fake=empty_output,
)
