"""``fxquant::avg_pool2d``: the mean of each window, rounded once. Schema, reference, shape function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import average, check_output, check_qparams, check_stored
from fxquant.kernels.library import define
from fxquant.kernels.pool.windows import (
    check_pooling,
    empty_output,
    pair,
    pooling_windows,
    window_products,
    window_sums,
)

OP = "fxquant::avg_pool2d"


def avg_pool2d(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    x_scale: float,
    x_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Average each window of stored integers, and store the mean on the output's grid.

    The sum of ``q - x_zero_point`` over the real elements is exact (padding adds 0). Then in float32, each step
    rounded: ``r = float(sum) * (x_scale / float(divisor))`` and
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even. Sizes and divisors are
    those of ``torch.nn.functional.avg_pool2d``.

    Args:
        x: uint8 or int8 [N, C, H, W] or [C, H, W]; N may be 0.
        kernel_size: Rows and columns, or one number for both, like the others.
        stride: Empty: ``kernel_size``.
        padding: On each side, at most half of the kernel.
        ceil_mode: Whether the last window may stick out.
        count_include_pad: Whether the divisor counts padding (never what lies beyond it).
        divisor_override: The divisor, not 0; None: the number of elements.
        x_scale: Real units per step of ``x``, rounded to float32 first.
        x_zero_point: In steps, inside the range of the dtype.
        scale: Of the output.
        zero_point: Of the output.
        quant_min: Smallest integer of the output, inside the range of the dtype.
        quant_max: Largest integer of the output.

    Returns:
        The dtype of ``x``, [N, C, OH, OW] or [C, OH, OW]; channels_last if ``x`` is, else contiguous.

    Raises:
        RuntimeError: an argument that torch refuses too, another dtype, or a grid not as above; the message names it.
    """
    return torch.ops.fxquant.avg_pool2d.default(
        x,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override,
        x_scale,
        x_zero_point,
        scale,
        zero_point,
        quant_min,
        quant_max,
    )


def reference(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    x_scale: float,
    x_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one."""
    y = empty_pooled(
        x,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override,
        x_scale,
        x_zero_point,
        scale,
        zero_point,
        quant_min,
        quant_max,
    )
    kernel, pad = pair(OP, "kernel_size", kernel_size), pair(OP, "padding", padding)
    step = pair(OP, "stride", stride or kernel)
    rows, columns = (
        pooling_windows(x.shape[axis], kernel[axis], step[axis], pad[axis], ceil_mode) for axis in (-2, -1)
    )
    if divisor_override is not None:
        divisor = torch.tensor(divisor_override, device=x.device)
    elif count_include_pad:
        divisor = window_products(rows.extent, columns.extent, x.device)
    else:
        divisor = window_products(rows.end - rows.start, columns.end - columns.start, x.device)
    sums = window_sums(x.to(torch.int32) - x_zero_point, rows, columns)
    return y.copy_(average(sums, divisor, x_scale, scale, zero_point, quant_min, quant_max, x.dtype))


def empty_pooled(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
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
    kernel = pair(OP, "kernel_size", kernel_size)
    height, width = check_pooling(
        OP,
        x,
        kernel,
        pair(OP, "stride", stride or kernel),
        pair(OP, "padding", padding),
        (1, 1),
        ceil_mode,
    )
    if divisor_override == 0:
        raise KernelError(f"{OP}: divisor_override is out of range", got=0, expected="None or a number other than 0")
    return empty_output(x, height, width)


define(
    "avg_pool2d(Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool count_include_pad, "
    "int? divisor_override, float x_scale, int x_zero_point, float scale, int zero_point, int quant_min, "
    "int quant_max) -> Tensor",
    reference=reference,
    fake=empty_pooled,
)
