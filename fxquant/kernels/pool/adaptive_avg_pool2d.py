"""``fxquant::adaptive_avg_pool2d``: means over windows that divide an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import AveragingCall
from fxquant.kernels.call import Pair, define_operator
from fxquant.kernels.pool.windows import (
    adaptive_windows,
    check_image,
    check_largest,
    empty_output,
    pair,
    window_products,
    window_sums,
)


@dataclass(eq=False, repr=False)
class AdaptiveAvgPool2dCall(AveragingCall):
    """Average quantized values over windows that divide the image into ``output_size``, and requantize.

    Window ``i`` of an axis runs from ``floor(i * size / outputs)`` to ``ceil((i + 1) * size / outputs)``. The sum of
    ``q - x_zero_point`` is exact. Then in float32, each step rounded: ``r = float(sum) * (x_scale / float(count))``
    and ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even.

    Returns:
        The dtype of ``x``, [N, C, OH, OW] or [C, OH, OW]; channels_last if ``x`` is, else contiguous.
    """

    op: ClassVar[str] = "fxquant::adaptive_avg_pool2d"

    x: Tensor
    """uint8 or int8 [N, C, H, W] or [C, H, W]; N may be 0."""
    output_size: Pair
    """Rows and columns, or one number for both, 0 or more."""
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
        check_image(self.op, self.x)
        height, width = pair(self.op, "output_size", self.output_size)
        if min(height, width) < 0:
            raise KernelError(f"{self.op}: output_size is too small", got=[height, width], expected="at least 0")
        check_largest(self.op, "output_size", (height, width))
        return empty_output(self.x, height, width)

    def reference(self) -> Tensor:
        y = self.empty_result()
        if y.numel() == 0:
            return y
        rows, columns = (adaptive_windows(self.x.shape[axis], y.shape[axis]) for axis in (-2, -1))
        sums = window_sums(self.x.to(torch.int32) - self.x_zero_point, rows, columns)
        divisor = window_products(rows.extent, columns.extent, self.x.device)
        return y.copy_(self.average(sums, divisor))


adaptive_avg_pool2d, reference = define_operator(AdaptiveAvgPool2dCall)
