"""``fxquant::table``: any function of one int8 tensor, as 256 answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.kernels.arithmetic import check_stored
from fxquant.kernels.call import OperatorCall, define_operator
from fxquant.kernels.checks import check_count
from fxquant.kernels.layout import like


@dataclass(eq=False, repr=False)
class TableCall(OperatorCall):
    """Look every element up: ``table[byte of x]``.

    The result has the dtype of ``table``, the shape and memory format of ``x``.
    """

    op: ClassVar[str] = "fxquant::table"

    x: Tensor
    """uint8 or int8, any shape and strides."""
    table: Tensor
    """uint8 or int8 [256]. An int8 ``x`` of -1 is the byte 255: the answers for negative values are the upper half."""

    def empty_result(self) -> Tensor:
        check_stored(self.op, "x", self.x)
        check_stored(self.op, "table", self.table)
        check_count(self.op, "table", self.table, 256)
        return torch.empty_like(self.x, dtype=self.table.dtype)

    def reference(self) -> Tensor:
        self.empty_result()
        return like(self.x, self.table[self.x.long() & 255])


table, table_reference = define_operator(TableCall)
