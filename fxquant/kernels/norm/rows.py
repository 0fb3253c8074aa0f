"""The base of softmax and layer_norm: rows of float or quantized values are normalized and quantized."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import STORED, RequantizingCall, check_qparams
from fxquant.kernels.checks import check_dtype


class RowsCall(RequantizingCall):
    """A call that normalizes the rows of ``x`` [..., columns]: float values, or quantized ones of scale ``x_scale``."""

    x: Tensor
    x_scale: float
    dtype: torch.dtype

    def empty_result(self) -> Tensor:
        op, x, dtype = self.op, self.x, self.dtype
        check_dtype(op, "x", x, (torch.float32, *STORED))
        if x.dim() == 0:
            raise KernelError(f"{op}: x has no dimension", got=[], expected="[..., columns]")
        check_dtype(op, "dtype", dtype, STORED)
        if x.dtype != torch.float32:
            check_qparams(op, "x_", self.x_scale, 0, x.dtype)
        self.check_output(dtype)
        return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def power_of_two(exponent: Tensor) -> Tensor:
    """Return ``2^exponent`` as float32, exactly; the exponent is an int32 from -126 to 127."""
    return ((exponent + 127) << 23).view(torch.float32)
