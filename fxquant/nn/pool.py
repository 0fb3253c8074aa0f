"""Pools and means of stored integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fxquant.kernels import adaptive_avg_pool2d, avg_pool2d, max_pool2d, mean
from fxquant.kernels.pool.adaptive_avg_pool2d import reference as adaptive_avg_pool2d_reference
from fxquant.kernels.pool.avg_pool2d import reference as avg_pool2d_reference
from fxquant.kernels.pool.max_pool2d import reference as max_pool2d_reference
from fxquant.kernels.pool.mean import reference as mean_reference
from fxquant.nn.base import QuantizedModule, integer_limits
from fxquant.nn.same_dtype import SameDtypeModule
from fxquant.plan.spec import QParams

Size = int | Sequence[int]


class QuantizedMaxPool2d(QuantizedModule):
    """The largest stored integer of each window, on the input's grid: ``fxquant.kernels.pool.max_pool2d``.

    Args:
        kernel_size: As in ``torch.nn.MaxPool2d``, like the others.
        stride: None: ``kernel_size``.
        padding: On each side; never chosen.
        dilation: Distance of the elements of a window.
        ceil_mode: Whether the last window may stick out.

    Shape:
        uint8 or int8 [N, C, H, W] or [C, H, W] to [N, C, OH, OW] or [C, OH, OW].
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.arguments = (
            pair(kernel_size),
            pair(kernel_size if stride is None else stride),
            pair(padding),
            pair(dilation),
            ceil_mode,
        )

    def forward(self, x: Tensor) -> Tensor:
        return max_pool2d(x, *self.arguments)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return max_pool2d_reference(x, *self.arguments)

    def extra_repr(self) -> str:
        kernel_size, stride, padding, dilation, ceil_mode = self.arguments
        return f"{kernel_size=}, {stride=}, {padding=}, {dilation=}, {ceil_mode=}"


class _Average(SameDtypeModule):
    """What the modules that average have in common: one input, one output, a grid for each."""

    def __init__(self, x: QParams, y: QParams) -> None:
        super().__init__()
        self.add_same_dtype_qparams("y", y)
        self.add_same_dtype_qparams("x", x)

    def pack(self) -> tuple[Any, ...]:
        """The last arguments of the operators: both grids, and the limits of the output."""
        return (*self.numbers("x"), *self.numbers("y"), *integer_limits(self.qparams("y"), None))


class QuantizedAvgPool2d(_Average):
    """The mean of each window of stored integers, rounded once: ``fxquant.kernels.pool.avg_pool2d``.

    Args:
        kernel_size: As in ``torch.nn.AvgPool2d``, like the next five.
        stride: None: ``kernel_size``.
        padding: On each side.
        ceil_mode: Whether the last window may stick out.
        count_include_pad: Whether the divisor counts padding.
        divisor_override: The divisor; None: the number of elements.
        x: Grid of the input; at most 8 bits, per tensor.
        y: Grid of the output.

    Shape:
        uint8 or int8 [N, C, H, W] or [C, H, W] to [N, C, OH, OW] or [C, OH, OW].

    Raises:
        LoweringError: a grid does not fit a byte.
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        x: QParams,
        y: QParams,
    ) -> None:
        super().__init__(x, y)
        self.arguments = (
            pair(kernel_size),
            pair(kernel_size if stride is None else stride),
            pair(padding),
            ceil_mode,
            count_include_pad,
            divisor_override,
        )

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(self.take("x", x), *self.arguments, *(self._packed or self.packed()))

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return avg_pool2d_reference(self.take("x", x), *self.arguments, *self.packed())

    def extra_repr(self) -> str:
        kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override = self.arguments
        geometry = f"{kernel_size=}, {stride=}, {padding=}, {ceil_mode=}, {count_include_pad=}, {divisor_override=}"
        return f"{geometry}\n{super().extra_repr()}"


class QuantizedAvgPool1d(QuantizedAvgPool2d):
    """The same of stored integers [N, C, L] or [C, L]: as images of one row."""

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        *,
        x: QParams,
        y: QParams,
    ) -> None:
        kernel, step, pad = (pair(size) for size in (kernel_size, kernel_size if stride is None else stride, padding))
        sizes = (1, kernel[1]), (1, step[1]), (0, pad[1])
        super().__init__(*sizes, ceil_mode, count_include_pad, x=x, y=y)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.unsqueeze(-2)).squeeze(-2)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return super().reference(x.unsqueeze(-2)).squeeze(-2)


class QuantizedAdaptiveAvgPool2d(_Average):
    """Means of stored integers over windows that fit the output size: ``fxquant.kernels.pool.adaptive_avg_pool2d``.

    Args:
        output_size: One number, or rows and columns; None keeps the input's size, as in ``torch.nn``.
        x: Grid of the input; at most 8 bits, per tensor.
        y: Grid of the output.

    Shape:
        uint8 or int8 [N, C, H, W] or [C, H, W] to [N, C, OH, OW] or [C, OH, OW].

    Raises:
        LoweringError: a grid does not fit a byte.
    """

    def __init__(self, output_size: int | Sequence[int | None] | None, x: QParams, y: QParams) -> None:
        super().__init__(x, y)
        self.output_size = tuple(output_size) if isinstance(output_size, Sequence) else (output_size, output_size)

    def forward(self, x: Tensor) -> Tensor:
        return adaptive_avg_pool2d(self.take("x", x), self._size(x), *(self._packed or self.packed()))

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return adaptive_avg_pool2d_reference(self.take("x", x), self._size(x), *self.packed())

    def _size(self, x: Tensor) -> list[int]:
        sizes = zip(self.output_size, x.shape[-2:], strict=True)
        return [own if wanted is None else wanted for wanted, own in sizes]

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


class QuantizedAdaptiveAvgPool1d(QuantizedAdaptiveAvgPool2d):
    """The same of stored integers [N, C, L] or [C, L]: as images of one row."""

    def __init__(self, output_size: int | Sequence[int | None] | None, x: QParams, y: QParams) -> None:
        size = output_size[0] if isinstance(output_size, Sequence) else output_size
        super().__init__((1, size), x, y)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.unsqueeze(-2)).squeeze(-2)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return super().reference(x.unsqueeze(-2)).squeeze(-2)


class QuantizedMean(_Average):
    """The mean of stored integers over some dimensions, rounded once: ``fxquant.kernels.pool.mean``.

    Args:
        dim: Dimensions to average over; None: all.
        keepdim: Whether they stay, with size 1.
        x: Grid of the input; at most 8 bits, per tensor.
        y: Grid of the output.

    Shape:
        uint8 or int8 of any shape to the shape without ``dim``, or with 1 there.

    Raises:
        LoweringError: a grid does not fit a byte.
    """

    def __init__(self, dim: Size | None, keepdim: bool, x: QParams, y: QParams) -> None:
        super().__init__(x, y)
        self.dim = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
        self.keepdim = keepdim

    def forward(self, x: Tensor) -> Tensor:
        return mean(self.take("x", x), self.dim, self.keepdim, *(self._packed or self.packed()))

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return mean_reference(self.take("x", x), self.dim, self.keepdim, *self.packed())

    def extra_repr(self) -> str:
        return f"dim={self.dim or 'all'}, keepdim={self.keepdim}, {super().extra_repr()}"


class QuantizedSum(QuantizedMean):
    """The sum of stored integers over some dimensions, rounded once: the mean of numbers that are larger by its count.

    Args:
        dim: Dimensions to sum over; None: all.
        keepdim: Whether they stay, with size 1.
        x: Grid of the input; at most 8 bits, per tensor.
        y: Grid of the output.

    Shape:
        uint8 or int8 of any shape to the shape without ``dim``, or with 1 there.

    Raises:
        LoweringError: a grid does not fit a byte.
    """

    def forward(self, x: Tensor) -> Tensor:
        return mean(self.take("x", x), self.dim, self.keepdim, *self._times_count(x))

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return mean_reference(self.take("x", x), self.dim, self.keepdim, *self._times_count(x))

    def _times_count(self, x: Tensor) -> tuple[Any, ...]:
        scale, *rest = self._packed or self.packed()
        return scale * math.prod(x.shape[dim] for dim in self.dim or range(x.dim())), *rest


def pair(size: Size) -> tuple[int, int]:
    """One number for both axes, or one for each."""
    if isinstance(size, int):
        return size, size
    return size[0], size[-1]
