"""Tables of quantized rows: how values of 4 bits lie in bytes, what numbers rows stand for, and what is checked."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import check_stored
from fxquant.kernels.checks import check_dtype

HALF_BITS = 4
"""Widest grid of which two values share a byte."""


def pack_halves(rows: Tensor) -> Tensor:
    """Put two values of 4 bits into each byte: the even column into the lower half.

    Args:
        rows: uint8 [rows, columns] of 0 to 15, or int8 of -8 to 7.

    Returns:
        The dtype of ``rows``, [rows, ceil(columns / 2)]; the last half is 0 where columns are odd.
    """
    halves = F.pad(rows.view(torch.uint8) & 15, (0, rows.shape[1] % 2))
    return (halves[:, ::2] | (halves[:, 1::2] << 4)).view(rows.dtype)


def unpack_halves(packed: Tensor, columns: int) -> Tensor:
    """What :func:`pack_halves` was given."""
    bits = packed.view(torch.uint8)
    halves = torch.stack([bits & 15, bits >> 4], -1).flatten(1)[:, :columns]
    return halves if packed.dtype == torch.uint8 else ((halves ^ 8).to(torch.int8) - 8)


def real_rows(weight: Tensor, scale: Tensor, zero_point: Tensor, indices: Tensor, bits: int, columns: int) -> Tensor:
    """Rows of a table as real numbers: ``(q - zero_point) * scale``, worked out in float64, rounded to float32 once.

    Args:
        weight: uint8 or int8 [rows, columns], or, of 4 bits, as :func:`pack_halves` gives it.
        scale: float32 [rows] or [1].
        zero_point: float32, likewise.
        indices: int64 [n], all of them rows.
        bits: 4 or 8.
        columns: Values of a row.

    Returns:
        float32 [n, columns].
    """
    picked = weight[indices]
    integers = unpack_halves(picked, columns) if bits == HALF_BITS else picked
    qparams = torch.zeros_like(indices) if scale.numel() == 1 else indices
    difference = integers.double() - zero_point[qparams].double()[:, None]
    return (difference * scale[qparams].double()[:, None]).float()


def check_table(op: str, weight: Tensor, scale: Tensor, zero_point: Tensor, bits: int, columns: int) -> None:
    check_stored(op, "weight", weight)
    if bits not in (HALF_BITS, 8):
        raise KernelError(f"{op}: bits is out of range", got=bits, expected="4 or 8")
    size = (columns + 1) // 2 if bits == HALF_BITS else columns
    if weight.dim() != 2 or columns < 0 or weight.shape[1] != size:
        raise KernelError(f"{op}: weight has the wrong shape", got=list(weight.shape), expected=f"[rows, {size}]")
    for argument, values in (("scale", scale), ("zero_point", zero_point)):
        check_dtype(op, argument, values, (torch.float32,))
        if values.dim() != 1 or values.numel() not in (1, len(weight)):
            expected = f"[{len(weight)}] or [1]"
            raise KernelError(f"{op}: {argument} has the wrong shape", got=list(values.shape), expected=expected)
    if scale.numel() != zero_point.numel():
        raise KernelError(
            f"{op}: scale and zero_point have different shapes",
            got=f"{list(scale.shape)} and {list(zero_point.shape)}",
            expected="one shape",
        )


def check_indices(op: str, argument: str, indices: Tensor) -> None:
    check_dtype(op, argument, indices, (torch.int32, torch.int64))


def check_rows(op: str, indices: Tensor, rows: int) -> None:
    """Every index is that of a row. On a GPU this waits for it, which the native kernels avoid."""
    wrong = (indices < 0) | (indices >= rows)
    if bool(wrong.any()):
        raise KernelError(
            f"{op}: an index is out of range",
            got=int(indices[wrong][0]),
            expected=f"0 to {rows - 1}" if rows else "none: there are no rows",
        )
