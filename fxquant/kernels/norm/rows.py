"""The base of softmax and layer_norm, which normalize rows of values; and the exponential of the references."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import STORED, RequantizingCall, check_qparams, float32
from fxquant.kernels.checks import check_dtype

SERIES = (
    0.00015403530393381608,
    0.0013333558146428443,
    0.009618129107628477,
    0.05550410866482158,
    0.2402265069591007,
    0.6931471805599453,
    1.0,
)
"""Of ``2^x`` around 0, from the sixth power down: ``ln(2)^k / k!``. It is off by 1.2e-7 at most for |x| <= 0.5."""
LOG2_E = 1.4426950408889634


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


def exp_parts(x: Tensor, smallest_power: float) -> tuple[Tensor, Tensor]:
    """Return ``y`` and ``n`` of ``e^x = y * 2^n``: each operation is one of float32, as in C++.

    Args:
        x: float32 <= 0, any shape.
        smallest_power: ``n`` is no smaller than this; a smaller ``e^x`` is ``2^smallest_power``, and so is that of NaN.

    Returns:
        ``y``, float32 around 1, and ``n``, int32; both of the shape of ``x``.
    """
    doublings = x * float32(LOG2_E)
    power = torch.where(doublings > smallest_power, doublings, smallest_power)
    whole = torch.round(power)
    part = power - whole
    first, *others = SERIES
    y = torch.full_like(part, float32(first))
    for coefficient in others:
        y = y * part + float32(coefficient)
    return y, whole.to(torch.int32)
