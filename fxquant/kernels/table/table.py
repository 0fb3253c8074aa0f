"""``fxquant::table``: any function of one int8 tensor, as 256 answers."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.kernels.checks import check_count, check_dtype
from fxquant.kernels.layout import like
from fxquant.kernels.library import define

OP = "fxquant::table"
_BYTES = (torch.uint8, torch.int8)


def table(x: Tensor, table: Tensor) -> Tensor:
    """Look every element up: ``table[byte of x]``.

    Args:
        x: uint8 or int8, any shape and strides.
        table: uint8 or int8 [256]. An int8 ``x`` of -1 is the byte 255: the answers for negative values are the upper
            half of the table.

    Returns:
        The dtype of ``table``, the shape and memory format of ``x``.

    Raises:
        RuntimeError: dtype or shape do not fit; the message names the argument.
    """
    return torch.ops.fxquant.table.default(x, table)


def reference(x: Tensor, table: Tensor) -> Tensor:
    """The same in pure torch, on any device."""
    _check(x, table)
    return like(x, table[x.long() & 255])


def _fake(x: Tensor, table: Tensor) -> Tensor:
    _check(x, table)
    return torch.empty_like(x, dtype=table.dtype)


def _check(x: Tensor, table: Tensor) -> None:
    check_dtype(OP, "x", x, _BYTES)
    check_dtype(OP, "table", table, _BYTES)
    check_count(OP, "table", table, 256)


define("table(Tensor x, Tensor table) -> Tensor", reference=reference, fake=_fake)
