"""``fxquant::mean``: the mean over some dimensions, rounded once. Schema, reference, shape function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import average, check_output, check_qparams, check_stored
from fxquant.kernels.checks import check_axis
from fxquant.kernels.library import define
from fxquant.kernels.pool.windows import memory_format

OP = "fxquant::mean"


def mean(
    x: Tensor,
    dim: Sequence[int],
    keepdim: bool,
    x_scale: float,
    x_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Average stored integers over the dimensions ``dim``, and store the mean on the output's grid.

    The sum of ``q - x_zero_point`` is exact. Then in float32, each step rounded:
    ``r = float(sum) * (x_scale / float(count))`` and
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even. The mean of no element is
    NaN, which becomes ``quant_min``.

    Args:
        x: uint8 or int8, any shape.
        dim: Dimensions to average over, each once; negative ones count from the end; empty: all of them.
        keepdim: Whether they stay, with size 1.
        x_scale: Real units per step of ``x``, rounded to float32 first.
        x_zero_point: In steps, inside the range of the dtype.
        scale: Of the output.
        zero_point: Of the output.
        quant_min: Smallest integer of the output, inside the range of the dtype.
        quant_max: Largest integer of the output.

    Returns:
        The dtype of ``x``; contiguous, or channels_last where ``keepdim`` and ``x`` is.

    Raises:
        RuntimeError: an argument is not as above; the message names it.
    """
    return torch.ops.fxquant.mean.default(
        x, dim, keepdim, x_scale, x_zero_point, scale, zero_point, quant_min, quant_max
    )


def reference(
    x: Tensor,
    dim: Sequence[int],
    keepdim: bool,
    x_scale: float,
    x_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one."""
    y = empty_mean(x, dim, keepdim, x_scale, x_zero_point, scale, zero_point, quant_min, quant_max)
    if y.numel() == 0:
        return y
    reduced = reduced_dims(x, dim)
    values = x.to(torch.int64) - x_zero_point
    sums = values.sum(reduced, keepdim) if reduced else values
    count = torch.tensor([x.shape[d] for d in reduced], dtype=torch.int64, device=x.device).prod()
    return y.copy_(average(sums, count, x_scale, scale, zero_point, quant_min, quant_max, x.dtype))


def empty_mean(
    x: Tensor,
    dim: Sequence[int],
    keepdim: bool,
    x_scale: float,
    x_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Check the arguments; an empty tensor of the result's shape, dtype and layout."""
    check_stored(OP, "x", x)
    check_qparams(OP, "x_", x_scale, x_zero_point, x.dtype)
    check_output(OP, scale, zero_point, quant_min, quant_max, x.dtype)
    reduced = reduced_dims(x, dim)
    if not keepdim:
        return x.new_empty([size for d, size in enumerate(x.shape) if d not in reduced])
    shape = [1 if d in reduced else size for d, size in enumerate(x.shape)]
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=memory_format(x))


def reduced_dims(x: Tensor, dim: Sequence[int]) -> list[int]:
    """The dimensions of ``dim`` as numbers from 0, in order; all of them if ``dim`` is empty."""
    reduced = sorted({check_axis(OP, d, x.dim()) for d in dim}) if x.dim() else []
    if x.dim() and len(reduced) != len(dim):
        raise KernelError(f"{OP}: dim names a dimension twice", got=list(dim), expected="each at most once")
    return reduced or list(range(x.dim()))


define(
    "mean(Tensor x, int[] dim, bool keepdim, float x_scale, int x_zero_point, float scale, int zero_point, "
    "int quant_min, int quant_max) -> Tensor",
    reference=reference,
    fake=empty_mean,
)
