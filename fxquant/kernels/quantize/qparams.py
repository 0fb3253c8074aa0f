"""Scale and zero point as arguments of operators: their types, and their place along an axis."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.checks import check_axis, check_count, check_zero_points

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
"""Dtypes that hold quantized values."""
_INT32 = torch.iinfo(torch.int32)


def as_tensors(x: Tensor, scale: Tensor | float, zero_point: Tensor | int) -> tuple[Tensor, Tensor]:
    """Turn qparams that are numbers into tensors [], on the device of ``x``."""
    return (
        scale if isinstance(scale, Tensor) else torch.as_tensor(scale, dtype=torch.float32, device=x.device),
        zero_point
        if isinstance(zero_point, Tensor)
        else torch.as_tensor(zero_point, dtype=torch.int64, device=x.device),
    )


def check_along(op: str, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None) -> int | None:
    """Check that qparams fit the axis of ``x``, and return the axis counted from the first dimension."""
    axis = None if axis is None else check_axis(op, axis, x.dim())
    channels = 1 if axis is None else x.shape[axis]
    check_count(op, "scale", scale, channels)
    check_count(op, "zero_point", zero_point, channels)
    return axis


def scale_values(scale: Tensor) -> Tensor:
    """Return scales as float32."""
    return scale.float()


def zero_point_values(op: str, zero_point: Tensor) -> Tensor:
    """Return zero points as int32; refuse values that are none. On a GPU this waits, which the native kernels avoid."""
    exact = zero_point.double()
    wrong = (exact != exact.round()) | (exact < _INT32.min) | (exact > _INT32.max)
    if bool(wrong.any()):
        raise KernelError(
            f"{op}: a zero point is no int32",
            got=f"{exact[wrong].flatten()[0].item():g}",
            expected="integers of 32 bits, in any integer or floating dtype",
        )
    return zero_point.int()


def checked_qparams(
    op: str, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """Return the scale as float32 and the zero point as int32, which is checked to lie within the limits."""
    zero_point = zero_point_values(op, zero_point)
    check_zero_points(op, zero_point, quant_min, quant_max)
    return scale_values(scale), zero_point


def along(values: Tensor, x: Tensor, axis: int | None) -> Tensor:
    """Return ``values`` [C] in a shape that broadcasts against ``x`` along ``axis``; [] per tensor."""
    if axis is None:
        return values.reshape([])
    return values.reshape([-1 if d == axis else 1 for d in range(x.dim())])
