"""``fxquant::max_pool2d``: the largest quantized value of each window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.kernels.arithmetic import check_stored, integer_range
from fxquant.kernels.call import OperatorCall, Pair, define_operator
from fxquant.kernels.pool.windows import check_pooling, empty_output, pair


@dataclass(eq=False, repr=False)
class MaxPool2dCall(OperatorCall):
    """Take the largest value of each window; quantizing keeps the order, so the result has the qparams of ``x``.

    Sizes are those of ``torch.nn.functional.max_pool2d``. Padding is never chosen; a window without a single real
    element (possible with a dilation and ``ceil_mode``) gives the smallest integer of the dtype, as -inf would.

    Returns:
        The dtype of ``x``, [N, C, OH, OW] or [C, OH, OW]; channels_last if ``x`` is, else contiguous.
    """

    op: ClassVar[str] = "fxquant::max_pool2d"

    x: Tensor
    """uint8 or int8 [N, C, H, W] or [C, H, W]; N may be 0."""
    kernel_size: Pair
    """Rows and columns, or one number for both, like the others."""
    stride: Pair
    """Empty: ``kernel_size``."""
    padding: Pair
    """On each side, at most half of the kernel."""
    dilation: Pair
    """Distance of the elements of a window."""
    ceil_mode: bool
    """Whether the last window may stick out."""

    def empty_result(self) -> Tensor:
        check_stored(self.op, "x", self.x)
        kernel = pair(self.op, "kernel_size", self.kernel_size)
        height, width = check_pooling(
            self.op,
            self.x,
            kernel,
            pair(self.op, "stride", self.stride or kernel),
            pair(self.op, "padding", self.padding),
            pair(self.op, "dilation", self.dilation),
            self.ceil_mode,
        )
        return empty_output(self.x, height, width)

    def reference(self) -> Tensor:
        y = self.empty_result()
        if y.numel() == 0:
            return y
        largest = F.max_pool2d(
            self.x.to(torch.float32),
            list(self.kernel_size),
            list(self.stride),
            list(self.padding),
            list(self.dilation),
            self.ceil_mode,
        )
        return y.copy_(largest.clamp(min=integer_range(self.x.dtype)[0]))


max_pool2d, reference = define_operator(MaxPool2dCall)
