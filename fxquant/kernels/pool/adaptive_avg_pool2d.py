"""``fxquant::adaptive_avg_pool2d``: the mean over a grid of windows. Schema, reference, shape function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import average, check_output, check_qparams, check_stored
from fxquant.kernels.library import define
from fxquant.kernels.pool.windows import (
    adaptive_windows,
    check_image,
    check_largest,
    empty_output,
    pair,
    window_products,
    window_sums,
)

OP = "fxquant::adaptive_avg_pool2d"


def adaptive_avg_pool2d(
    x: Tensor,
    output_size: Sequence[int],
    x_scale: float,
    x_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Average stored integers over windows that divide the image into ``output_size``; store on the output's grid.

    Window ``i`` of an axis runs from ``floor(i * size / outputs)`` to ``ceil((i + 1) * size / outputs)``. The sum of
    ``q - x_zero_point`` is exact. Then in float32, each step rounded: ``r = float(sum) * (x_scale / float(count))``
    and ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even.

    Args:
        x: uint8 or int8 [N, C, H, W] or [C, H, W]; N may be 0.
        output_size: Rows and columns, or one number for both, 0 or more.
        x_scale: Real units per step of ``x``, rounded to float32 first.
        x_zero_point: In steps, inside the range of the dtype.
        scale: Of the output.
        zero_point: Of the output.
        quant_min: Smallest integer of the output, inside the range of the dtype.
        quant_max: Largest integer of the output.

    Returns:
        The dtype of ``x``, [N, C, OH, OW] or [C, OH, OW]; channels_last if ``x`` is, else contiguous.

    Raises:
        RuntimeError: an argument is not as above; the message names it.
    """
    return torch.ops.fxquant.adaptive_avg_pool2d.default(
        x, output_size, x_scale, x_zero_point, scale, zero_point, quant_min, quant_max
    )


def reference(
    x: Tensor,
    output_size: Sequence[int],
    x_scale: float,
    x_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one."""
    y = empty_pooled(x, output_size, x_scale, x_zero_point, scale, zero_point, quant_min, quant_max)
    if y.numel() == 0:
        return y
    rows, columns = (adaptive_windows(x.shape[axis], y.shape[axis]) for axis in (-2, -1))
    sums = window_sums(x.to(torch.int32) - x_zero_point, rows, columns)
    divisor = window_products(rows.extent, columns.extent, x.device)
    return y.copy_(average(sums, divisor, x_scale, scale, zero_point, quant_min, quant_max, x.dtype))


def empty_pooled(
    x: Tensor,
    output_size: Sequence[int],
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
    check_image(OP, x)
    height, width = pair(OP, "output_size", output_size)
    if min(height, width) < 0:
        raise KernelError(f"{OP}: output_size is too small", got=[height, width], expected="at least 0")
    check_largest(OP, "output_size", (height, width))
    return empty_output(x, height, width)


define(
    "adaptive_avg_pool2d(Tensor x, int[2] output_size, float x_scale, int x_zero_point, float scale, int zero_point, "
    "int quant_min, int quant_max) -> Tensor",
    reference=reference,
    fake=empty_pooled,
)
