"""What the int8 operators on two tensors (add, mul) have in common: argument list, checks, shape of the result."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import check_output, check_qparams, check_same_dtype, check_stored

ARGUMENTS = (
    "(Tensor a, float a_scale, int a_zero_point, Tensor b, float b_scale, int b_zero_point, "
    "float scale, int zero_point, int quant_min, int quant_max) -> Tensor"
)


def empty_result(
    op: str,
    a: Tensor,
    a_scale: float,
    a_zero_point: int,
    b: Tensor,
    b_scale: float,
    b_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Check the arguments of an operator on two tensors; an empty tensor of the result's shape, dtype and layout.

    The layout is that of ``a`` if it has the shape of the result, else that of ``b`` if it has, else contiguous.
    """
    check_stored(op, "a", a)
    check_same_dtype(op, "b", b, a)
    check_qparams(op, "a_", a_scale, a_zero_point, a.dtype)
    check_qparams(op, "b_", b_scale, b_zero_point, b.dtype)
    check_output(op, scale, zero_point, quant_min, quant_max, a.dtype)
    shape = broadcast_shape(op, a, b)
    for lead in (a, b):
        if lead.shape == shape:
            return torch.empty_like(lead)
    return a.new_empty(shape)


def broadcast_shape(op: str, a: Tensor, b: Tensor) -> torch.Size:
    """The common shape of ``a`` and ``b``; sizes of 1 and missing leading dimensions are repeated."""
    dims = max(a.dim(), b.dim())
    padded = [[1] * (dims - x.dim()) + list(x.shape) for x in (a, b)]
    if not all(m == n or m == 1 or n == 1 for m, n in zip(*padded, strict=True)):
        raise KernelError(
            f"{op}: a and b do not broadcast",
            got=f"{list(a.shape)} and {list(b.shape)}",
            expected="sizes that are equal or 1, from the last dimension on",
        )
    return torch.broadcast_shapes(a.shape, b.shape)
