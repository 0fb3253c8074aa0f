"""What the int8 operators that requantize have in common: float32 scalars, their checks, and the last operation."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import OperatorCall
from fxquant.kernels.checks import check_dtype

STORED = (torch.uint8, torch.int8)
"""The dtypes that int8 operators take and give."""

SMALLEST_NORMAL = torch.finfo(torch.float32).smallest_normal


def float32(value: float) -> float:
    """Round ``value`` to float32, as every double of a schema is before it is used."""
    return ctypes.c_float(value).value


def inverse(scale: float) -> float:
    """Return ``1.0f / scale`` in float32. Dividing in float64 and rounding once more gives the same."""
    return float32(1.0 / float32(scale))


def check_stored(op: str, argument: str, x: Tensor) -> None:
    """Check that ``x`` holds quantized values."""
    check_dtype(op, argument, x, STORED)


def check_same_dtype(op: str, argument: str, x: Tensor, like: Tensor) -> None:
    """Check that an input has the dtype of another one."""
    check_dtype(op, argument, x, (like.dtype,))


def check_qparams(op: str, prefix: str, scale: float, zero_point: int, dtype: torch.dtype) -> None:
    """Check that a scale is a normal, positive float32, whose inverse is finite, and that a zero point fits ``dtype``.

    Args:
        op: Name of the operator, for the message.
        prefix: What stands before ``scale`` and ``zero_point`` in the names of the arguments: ``"x_"`` or ``""``.
        scale: Scale of the argument.
        zero_point: Its zero point.
        dtype: uint8 or int8.
    """
    if not SMALLEST_NORMAL <= float32(scale) < math.inf:
        raise KernelError(f"{op}: {prefix}scale is unusable", got=f"{scale:g}", expected="a positive, normal float32")
    low, high = integer_range(dtype)
    if not low <= zero_point <= high:
        raise KernelError(f"{op}: {prefix}zero_point is out of range", got=zero_point, expected=f"{low} to {high}")


def check_output(op: str, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype) -> None:
    """Check the qparams of an output: as :func:`check_qparams`, and limits in order that ``dtype`` can store."""
    check_qparams(op, "", scale, zero_point, dtype)
    low, high = integer_range(dtype)
    if not low <= quant_min <= quant_max <= high:
        raise KernelError(
            f"{op}: quant_min and quant_max are out of range",
            got=f"[{quant_min}, {quant_max}]",
            expected=f"quant_min <= quant_max, both in {low} to {high}",
        )


def check_result(op: str, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype) -> None:
    """Check the same where the result may also be float values (float32), which need no qparams."""
    check_dtype(op, "dtype", dtype, (*STORED, torch.float32))
    if dtype != torch.float32:
        check_output(op, scale, zero_point, quant_min, quant_max, dtype)


def requantize(
    real: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    """Quantize float values in float32: ``clamp(round(real * (1 / scale)) + zero_point, quant_min, quant_max)``.

    NaN becomes ``quant_min``.
    """
    q = torch.round(real * inverse(scale)) + float(zero_point)
    return torch.where(q > quant_min, q, float(quant_min)).clamp(max=float(quant_max)).to(dtype)


def average(
    sums: Tensor,
    divisor: Tensor,
    x_scale: float,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Requantize exact sums: ``r = float(sum) * (x_scale / float(divisor))``, then :func:`requantize`.

    Args:
        sums: int64, sums of ``q - x_zero_point``.
        divisor: int64, broadcasts against ``sums``.
        x_scale: Scale of the input.
        scale: Of the output.
        zero_point: Of the output.
        quant_min: Smallest integer of the result.
        quant_max: Largest integer of the result.
        dtype: Of the result, uint8 or int8.
    """
    factor = torch.full((), float32(x_scale), dtype=torch.float32, device=sums.device) / divisor.to(torch.float32)
    return requantize(sums.to(torch.float32) * factor, scale, zero_point, quant_min, quant_max, dtype)


def integer_range(dtype: torch.dtype) -> tuple[int, int]:
    """Return the smallest and the largest integer of uint8 or int8."""
    return (0, 255) if dtype == torch.uint8 else (-128, 127)


class RequantizingCall(OperatorCall):
    """A call whose result has qparams of its own: these four arguments, which each record declares in their place."""

    scale: float
    zero_point: int
    quant_min: int
    quant_max: int

    def check_output(self, dtype: torch.dtype) -> None:
        """Check the qparams of a result that is stored as ``dtype``."""
        check_output(self.op, self.scale, self.zero_point, self.quant_min, self.quant_max, dtype)

    def requantize(self, real: Tensor, dtype: torch.dtype) -> Tensor:
        """Round float32 values to the qparams of the result; ``dtype`` is uint8 or int8."""
        return requantize(real, self.scale, self.zero_point, self.quant_min, self.quant_max, dtype)


class AveragingCall(RequantizingCall):
    """A call that averages ``x``, which has the qparams ``x_scale`` and ``x_zero_point``."""

    x: Tensor
    x_scale: float
    x_zero_point: int

    def check_average(self) -> None:
        """Check the input and the qparams of both sides."""
        check_stored(self.op, "x", self.x)
        check_qparams(self.op, "x_", self.x_scale, self.x_zero_point, self.x.dtype)
        self.check_output(self.x.dtype)

    def average(self, sums: Tensor, divisor: Tensor) -> Tensor:
        """Divide exact sums of ``x - x_zero_point`` and requantize the quotients, as :func:`average` does."""
        y = (self.scale, self.zero_point, self.quant_min, self.quant_max)
        return average(sums, divisor, self.x_scale, *y, self.x.dtype)
