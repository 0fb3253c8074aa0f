"""``fxquant::max_pool2d``: the largest stored integer of each window. Schema, reference, shape function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.kernels.arithmetic import check_stored, integer_range
from fxquant.kernels.library import define
from fxquant.kernels.pool.windows import check_pooling, empty_output, pair

OP = "fxquant::max_pool2d"


def max_pool2d(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """Take the largest integer of each window; grids are increasing maps, so the result is on the grid of ``x``.

    Sizes are those of ``torch.nn.functional.max_pool2d``. Padding is never chosen; a window without a single real
    element (possible with a dilation and ``ceil_mode``) gives the smallest integer of the dtype, as -inf would.

    Args:
        x: uint8 or int8 [N, C, H, W] or [C, H, W]; N may be 0.
        kernel_size: Rows and columns, or one number for both, like the others.
        stride: Empty: ``kernel_size``.
        padding: On each side, at most half of the kernel.
        dilation: Distance of the elements of a window.
        ceil_mode: Whether the last window may stick out.

    Returns:
        The dtype of ``x``, [N, C, OH, OW] or [C, OH, OW]; channels_last if ``x`` is, else contiguous.

    Raises:
        RuntimeError: an argument that torch refuses too, or another dtype; the message names it.
    """
    return torch.ops.fxquant.max_pool2d.default(x, kernel_size, stride, padding, dilation, ceil_mode)


def reference(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one: bytes are exact in float32."""
    y = empty_pooled(x, kernel_size, stride, padding, dilation, ceil_mode)
    if y.numel() == 0:
        return y
    largest = F.max_pool2d(
        x.to(torch.float32), list(kernel_size), list(stride), list(padding), list(dilation), ceil_mode
    )
    return y.copy_(largest.clamp(min=integer_range(x.dtype)[0]))


def empty_pooled(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """Check the arguments; an empty tensor of the result's shape, dtype and layout."""
    check_stored(OP, "x", x)
    kernel = pair(OP, "kernel_size", kernel_size)
    height, width = check_pooling(
        OP,
        x,
        kernel,
        pair(OP, "stride", stride or kernel),
        pair(OP, "padding", padding),
        pair(OP, "dilation", dilation),
        ceil_mode,
    )
    return empty_output(x, height, width)


define(
    "max_pool2d(Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode) "
    "-> Tensor",
    reference=reference,
    fake=empty_pooled,
)
