"""``fxquant::avg_pool2d``: the mean of each window, rounded once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import AveragingCall
from fxquant.kernels.call import Pair, define_operator
from fxquant.kernels.pool.windows import (
    check_pooling,
    empty_output,
    pair,
    pooling_windows,
    window_products,
    window_sums,
)


@dataclass(eq=False, repr=False)
class AvgPool2dCall(AveragingCall):
    """Average each window of quantized values, and requantize the mean.

    The sum of ``q - x_zero_point`` over the elements is exact (padding adds 0). Then in float32, each step
    rounded: ``r = float(sum) * (x_scale / float(divisor))`` and
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even. Sizes and divisors are
    those of ``torch.nn.functional.avg_pool2d``.

    Returns:
        The dtype of ``x``, [N, C, OH, OW] or [C, OH, OW]; channels_last if ``x`` is, else contiguous.
    """

    op: ClassVar[str] = "fxquant::avg_pool2d"

    x: Tensor
    """uint8 or int8 [N, C, H, W] or [C, H, W]; N may be 0."""
    kernel_size: Pair
    """Rows and columns, or one number for both, like the others."""
    stride: Pair
    """Empty: ``kernel_size``."""
    padding: Pair
    """On each side, at most half of the kernel."""
    ceil_mode: bool
    """Whether the last window may stick out."""
    count_include_pad: bool
    """Whether the divisor counts padding (never what lies beyond it)."""
    divisor_override: int | None
    """The divisor, not 0; None: the number of elements."""
    x_scale: float
    """Scale of ``x``, rounded to float32 first."""
    x_zero_point: int
    """Zero point, inside the range of the dtype."""
    scale: float
    zero_point: int
    quant_min: int
    """Smallest integer of the output, inside the range of the dtype."""
    quant_max: int
    """Largest integer of the output."""

    def empty_result(self) -> Tensor:
        self.check_average()
        kernel = pair(self.op, "kernel_size", self.kernel_size)
        height, width = check_pooling(
            self.op,
            self.x,
            kernel,
            pair(self.op, "stride", self.stride or kernel),
            pair(self.op, "padding", self.padding),
            (1, 1),
            self.ceil_mode,
        )
        if self.divisor_override == 0:
            raise KernelError(
                f"{self.op}: divisor_override is out of range", got=0, expected="None or a number other than 0"
            )
        return empty_output(self.x, height, width)

    def reference(self) -> Tensor:
        y = self.empty_result()
        kernel, pad = pair(self.op, "kernel_size", self.kernel_size), pair(self.op, "padding", self.padding)
        stride = pair(self.op, "stride", self.stride or kernel)
        rows, columns = (
            pooling_windows(self.x.shape[axis], kernel[axis], stride[axis], pad[axis], self.ceil_mode)
            for axis in (-2, -1)
        )
        if self.divisor_override is not None:
            divisor = torch.tensor(self.divisor_override, device=self.x.device)
        elif self.count_include_pad:
            divisor = window_products(rows.extent, columns.extent, self.x.device)
        else:
            divisor = window_products(rows.end - rows.start, columns.end - columns.start, self.x.device)
        sums = window_sums(self.x.to(torch.int32) - self.x_zero_point, rows, columns)
        return y.copy_(self.average(sums, divisor))


avg_pool2d, reference = define_operator(AvgPool2dCall)
