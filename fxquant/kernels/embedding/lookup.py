"""Tables of quantized rows: how values of 4 bits lie in bytes, which float values rows stand for, and the checks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import check_stored
from fxquant.kernels.call import Call
from fxquant.kernels.checks import check_dtype

HALF_BITS = 4
"""Bits of quantized values of which two share a byte."""


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
    """Return the rows that :func:`pack_halves` was given."""
    both = packed.view(torch.uint8)
    halves = torch.stack([both & 15, both >> 4], -1).flatten(1)[:, :columns]
    return halves if packed.dtype == torch.uint8 else ((halves ^ 8).to(torch.int8) - 8)


class LookupCall(Call[Tensor]):
    """A call that looks rows of a quantized table up. Each record declares these arguments in their place."""

    weight: Tensor
    scale: Tensor
    zero_point: Tensor
    indices: Tensor
    bits: int
    columns: int

    def check_table(self) -> None:
        """Check the table, and the dtype of the indices."""
        op, weight, scale, zero_point = self.op, self.weight, self.scale, self.zero_point
        check_stored(op, "weight", weight)
        if self.bits not in (HALF_BITS, 8):
            raise KernelError(f"{op}: bits is out of range", got=self.bits, expected="4 or 8")
        size = (self.columns + 1) // 2 if self.bits == HALF_BITS else self.columns
        if weight.dim() != 2 or self.columns < 0 or weight.shape[1] != size:
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
        check_indices(op, "indices", self.indices)

    def float_rows(self, indices: Tensor) -> Tensor:
        """Dequantize rows: ``(q - zero_point) * scale`` in float64, rounded to float32 once.

        Args:
            indices: int64 [n], all of them rows.

        Returns:
            float32 [n, columns].
        """
        rows = self.weight[indices]
        q = unpack_halves(rows, self.columns) if self.bits == HALF_BITS else rows
        qparams = torch.zeros_like(indices) if self.scale.numel() == 1 else indices
        difference = q.double() - self.zero_point[qparams].double()[:, None]
        return (difference * self.scale[qparams].double()[:, None]).float()


def check_indices(op: str, argument: str, indices: Tensor) -> None:
    """Check the dtype of indices or offsets."""
    check_dtype(op, argument, indices, (torch.int32, torch.int64))


def check_rows(op: str, indices: Tensor, rows: int) -> None:
    """Check that every index is that of a row. On a GPU this waits for it, which the native kernels avoid."""
    wrong = (indices < 0) | (indices >= rows)
    if bool(wrong.any()):
        raise KernelError(
            f"{op}: an index is out of range",
            got=int(indices[wrong][0]),
            expected=f"0 to {rows - 1}" if rows else "none: there are no rows",
        )
