"""``fxquant::moving_average_qparams``: measure a batch, average its range into the running one, choose the grid."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.checks import check_axis, check_count, check_dtype, check_limits, check_zero_points
from fxquant.kernels.fake_quantize.affine_qparams import affine_qparams
from fxquant.kernels.library import define
from fxquant.kernels.quantize.affine import FLOATS

OP = "fxquant::moving_average_qparams"

_LARGEST = torch.finfo(torch.float32).max

Result = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def moving_average_qparams(
    x: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    axis: int | None,
    averaging_constant: float,
    eps: float,
    quant_min: int,
    quant_max: int,
    middle: int | None,
) -> Result:
    """One step of a moving average of ranges, in one pass over the data.

    Args:
        x: float32, float64, float16 or bfloat16, any strides, at least one value.
        running_min: float32 [C] ([] or [1] per tensor); inf before the first batch.
        running_max: The same, -inf before the first batch.
        axis: The dimension of the channels, negative ones count from the end; None: one range for the tensor.
        averaging_constant: Weight of this batch, 0 to 1; the first batch sets the range.
        eps: Smallest scale, in real units per step.
        quant_min: Smallest step of the grid; an int32.
        quant_max: Largest step of the grid; an int32.
        middle: Zero point of a symmetric grid, a step of it; None: an affine one.

    Returns:
        The new ``running_min`` and ``running_max``, of their shape; ``scale`` float32 [C] and ``zero_point`` int32 [C]
        for them; how many values of ``x`` are NaN or infinite in float32, int64 []: those are left out. A channel
        without a finite value keeps its range; if it never had one, its scale is ``eps``.

    Raises:
        RuntimeError: an argument is not as above; the message names it.

    Source:
        Jacob et al., arXiv:1712.05877, section 3.1.
    """
    return torch.ops.fxquant.moving_average_qparams.default(
        x, running_min, running_max, axis, averaging_constant, eps, quant_min, quant_max, middle
    )


def reference(
    x: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    axis: int | None,
    averaging_constant: float,
    eps: float,
    quant_min: int,
    quant_max: int,
    middle: int | None,
) -> Result:
    """The same in pure torch, on any device."""
    axis = _check(x, running_min, running_max, axis, quant_min, quant_max)
    _check_numbers(averaging_constant, eps, quant_min, quant_max, middle)
    values, infinity = x.float(), torch.tensor(torch.inf, device=x.device)
    finite = values.isfinite()
    reduced = [d for d in range(x.dim()) if d != axis]
    lows, highs = torch.where(finite, values, infinity), torch.where(finite, values, -infinity)
    low = (lows.amin(reduced) if reduced or not x.dim() else lows).reshape(running_min.shape)
    high = highs.amax(reduced) if reduced or not x.dim() else highs
    of_max = running_max.shape
    running_max, high = running_max.reshape(running_min.shape), high.reshape(running_min.shape)
    started, seen = running_min <= running_max, low <= high
    new = []
    for before, batch in ((running_min, low), (running_max, high)):
        blended = torch.where(started, before + averaging_constant * (batch - before), batch)
        new.append(torch.where(seen, blended, before))
    smallest, largest = (torch.atleast_1d(each) for each in new)
    qparams = affine_qparams(smallest, largest, quant_min, quant_max, middle, eps)
    return new[0], new[1].reshape(of_max), *qparams, (~finite).sum()


def _fake(
    x: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    axis: int | None,
    averaging_constant: float,
    eps: float,
    quant_min: int,
    quant_max: int,
    middle: int | None,
) -> Result:
    axis = _check(x, running_min, running_max, axis, quant_min, quant_max)
    _check_numbers(averaging_constant, eps, quant_min, quant_max, middle)
    channels = 1 if axis is None else x.shape[axis]
    scale = running_min.new_empty([channels])
    nonfinite = running_min.new_empty([], dtype=torch.int64)
    zero_point = scale.new_empty([channels], dtype=torch.int32)
    return torch.empty_like(running_min), torch.empty_like(running_max), scale, zero_point, nonfinite


def _check(
    x: Tensor, running_min: Tensor, running_max: Tensor, axis: int | None, quant_min: int, quant_max: int
) -> int | None:
    check_dtype(OP, "x", x, FLOATS)
    axis = None if axis is None else check_axis(OP, axis, x.dim())
    for name, values in (("running_min", running_min), ("running_max", running_max)):
        check_dtype(OP, name, values, (torch.float32,))
        check_count(OP, name, values, 1 if axis is None else x.shape[axis])
    if x.numel() == 0:
        raise KernelError(f"{OP}: x is empty", got=list(x.shape), expected="at least one value")
    check_limits(OP, quant_min, quant_max)
    return axis


def _check_numbers(averaging: float, eps: float, quant_min: int, quant_max: int, middle: int | None) -> None:
    if middle is not None:
        check_zero_points(OP, middle, quant_min, quant_max)
    for name, value in (("averaging_constant", averaging), ("eps", eps)):
        if not abs(value) <= _LARGEST:
            raise KernelError(f"{OP}: {name} is out of range", got=f"{value:g}", expected="a finite float32")


define(
    "moving_average_qparams(Tensor x, Tensor running_min, Tensor running_max, int? axis, float averaging_constant, "
    "float eps, int quant_min, int quant_max, int? middle) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=reference,
    fake=_fake,
)
