"""Average pools, means and sums of quantized values. In three dimensions they are summed in float, which is exact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.kernels import adaptive_avg_pool2d, avg_pool2d, dequantize, mean, quantize
from fxquant.kernels.arithmetic import average, float32
from fxquant.kernels.pool.adaptive_avg_pool2d import reference as adaptive_avg_pool2d_reference
from fxquant.kernels.pool.avg_pool2d import reference as avg_pool2d_reference
from fxquant.kernels.pool.mean import reference as mean_reference
from fxquant.kernels.pool.windows import Windows, adaptive_windows, pooling_windows, window_sums
from fxquant.nn.base import SameDtypeModule, integer_limits
from fxquant.nn.max_pool import Size, pair, several
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import QParams

_WINDOWS = {"kernel_size": None, "stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True}


class _Average(SameDtypeModule):
    """Holds what the modules that average have in common: one input, one output, qparams of each."""

    CAPTURE: ClassVar[str] = "pool"
    """Name of the operator in its pattern."""
    DEFAULTS: ClassVar[Mapping[str, Any]] = {"output_size": None}
    """Its arguments after the first, by name, and what they are if they are not given."""

    def __init__(self, x: QParams, y: QParams) -> None:
        super().__init__()
        self.add_same_dtype_qparams("y", y)
        self.add_same_dtype_qparams("x", x)

    @classmethod
    def from_unit(cls, unit: UnitView) -> Any:
        """Build the module of a unit."""
        build: Any = cls
        return build(*unit.arguments(cls.CAPTURE, **cls.DEFAULTS), x=unit.qparams["x"], y=unit.qparams["y"])

    def pack(self) -> tuple[Any, ...]:
        """Return the last arguments of the operators: the qparams of both sides, and the limits of the output."""
        return (*self.numbers("x"), *self.numbers("y"), *integer_limits(self.qparams("y"), None))


class QuantizedAvgPool2d(_Average):
    """Averages each window of quantized values, rounded once: ``fxquant.kernels.pool.avg_pool2d``.

    Args:
        kernel_size: As in ``torch.nn.AvgPool2d``, like the next five.
        stride: None: ``kernel_size``.
        padding: On each side.
        ceil_mode: Whether the last window may stick out.
        count_include_pad: Whether the divisor counts padding.
        divisor_override: The divisor; None: the number of elements.
        x: Qparams of the input; at most 8 bits, per tensor.
        y: Qparams of the output.

    Shape:
        uint8 or int8 [N, C, H, W] or [C, H, W] to [N, C, OH, OW] or [C, OH, OW].

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    DEFAULTS = {**_WINDOWS, "divisor_override": None}  # noqa: RUF012

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
    """Does the same for quantized values [N, C, L] or [C, L]: as images of one row."""

    DEFAULTS = _WINDOWS

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
        kernel, stride_, pad = (
            pair(size) for size in (kernel_size, kernel_size if stride is None else stride, padding)
        )
        sizes = (1, kernel[1]), (1, stride_[1]), (0, pad[1])
        super().__init__(*sizes, ceil_mode, count_include_pad, x=x, y=y)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.unsqueeze(-2)).squeeze(-2)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return super().reference(x.unsqueeze(-2)).squeeze(-2)


class QuantizedAdaptiveAvgPool2d(_Average):
    """Averages quantized values over windows that fit the output size: ``fxquant.kernels.pool.adaptive_avg_pool2d``.

    Args:
        output_size: One number, or rows and columns; None keeps the input's size, as in ``torch.nn``.
        x: Qparams of the input; at most 8 bits, per tensor.
        y: Qparams of the output.

    Shape:
        uint8 or int8 [N, C, H, W] or [C, H, W] to [N, C, OH, OW] or [C, OH, OW].

    Raises:
        LoweringError: qparams do not fit a byte.
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
    """Does the same for quantized values [N, C, L] or [C, L]: as images of one row."""

    def __init__(self, output_size: int | Sequence[int | None] | None, x: QParams, y: QParams) -> None:
        size = output_size[0] if isinstance(output_size, Sequence) else output_size
        super().__init__((1, size), x, y)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.unsqueeze(-2)).squeeze(-2)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return super().reference(x.unsqueeze(-2)).squeeze(-2)


class QuantizedMean(_Average):
    """Averages quantized values over some dimensions, rounded once: ``fxquant.kernels.pool.mean``.

    Args:
        dim: Dimensions to average over; None: all.
        keepdim: Whether they stay, with size 1.
        x: Qparams of the input; at most 8 bits, per tensor.
        y: Qparams of the output.

    Shape:
        uint8 or int8 of any shape to the shape without ``dim``, or with 1 there.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    CAPTURE = "mean"
    DEFAULTS = {"dim": None, "keepdim": False}  # noqa: RUF012

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
    """Sums quantized values over some dimensions, rounded once: the mean of numbers that are larger by its count.

    Args:
        dim: Dimensions to sum over; None: all.
        keepdim: Whether they stay, with size 1.
        x: Qparams of the input; at most 8 bits, per tensor.
        y: Qparams of the output.

    Shape:
        uint8 or int8 of any shape to the shape without ``dim``, or with 1 there.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    def forward(self, x: Tensor) -> Tensor:
        return mean(self.take("x", x), self.dim, self.keepdim, *self._times_count(x))

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return mean_reference(self.take("x", x), self.dim, self.keepdim, *self._times_count(x))

    def _times_count(self, x: Tensor) -> tuple[Any, ...]:
        scale, *rest = self._packed or self.packed()
        return scale * math.prod(x.shape[dim] for dim in self.dim or range(x.dim())), *rest


EXACT_IN_FLOAT32 = 2**24 // 255
"""Elements of a window up to which every partial sum is a float32: none is further than 255 from the zero point."""


class _AvgPool3d(_Average):
    """Holds what both averages have in common."""

    def _rounded(self, sums: Tensor, divisor: Tensor) -> Tensor:
        x_scale, _, scale, zero_point, low, high = self._packed or self.packed()
        factor = torch.full((), float32(x_scale), device=sums.device) / divisor.to(sums.device, torch.float32)
        return quantize(sums.to(torch.float32) * factor, scale, zero_point, low, high, self.y_dtype)

    def _whole_numbers(self, x: Tensor, elements: int) -> Tensor:
        """Return ``q - zero_point`` in a dtype that sums of so many elements are exact in."""
        _, zero_point, *_ = self._packed or self.packed()
        values = dequantize(self.take("x", x), 1.0, zero_point)
        return values if elements <= EXACT_IN_FLOAT32 else values.double()

    def _reference(self, x: Tensor, windows: Sequence[Windows], divisor: Tensor) -> Tensor:
        x_scale, x_zero_point, scale, zero_point, low, high = self.packed()
        sums = window_sums(self.take("x", x).to(torch.int32) - x_zero_point, *windows)
        return average(sums, divisor.to(x.device), x_scale, scale, zero_point, low, high, self.y_dtype)


class QuantizedAvgPool3d(_AvgPool3d):
    """Averages each window of quantized values, rounded once, as ``fxquant.kernels.pool.avg_pool2d`` defines it.

    Args:
        kernel_size: As in ``torch.nn.AvgPool3d``, like the next five.
        stride: None: ``kernel_size``.
        padding: On each side.
        ceil_mode: Whether the last window may stick out.
        count_include_pad: Whether the divisor counts padding.
        divisor_override: The divisor; None: the number of elements.
        x: Qparams of the input; at most 8 bits, per tensor.
        y: Qparams of the output.

    Shape:
        uint8 or int8 [N, C, D, H, W] or [C, D, H, W] to [N, C, OD, OH, OW] or [C, OD, OH, OW].

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    DEFAULTS = QuantizedAvgPool2d.DEFAULTS

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        x: QParams,
        y: QParams,
    ) -> None:
        super().__init__(x, y)
        self.kernel_size = several(kernel_size, 3)
        self.stride = several(kernel_size if stride is None else stride, 3)
        self.padding = several(padding, 3)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        values = self._whole_numbers(x, math.prod(self.kernel_size))
        sizes = (self.kernel_size, self.stride, self.padding, self.ceil_mode)
        sums = F.avg_pool3d(values, *sizes, divisor_override=1)
        return self._rounded(sums, self._divisor(self._windows(x)))

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        windows = self._windows(x)
        return self._reference(x, windows, self._divisor(windows))

    def _windows(self, x: Tensor) -> list[Windows]:
        geometry = zip(x.shape[-3:], self.kernel_size, self.stride, self.padding, strict=True)
        return [pooling_windows(*axis, self.ceil_mode) for axis in geometry]

    def _divisor(self, windows: Sequence[Windows]) -> Tensor:
        if self.divisor_override is not None:
            return torch.tensor(self.divisor_override)
        return _products([w.extent if self.count_include_pad else w.end - w.start for w in windows])

    def extra_repr(self) -> str:
        geometry = f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
        counting = f"count_include_pad={self.count_include_pad}, divisor_override={self.divisor_override}"
        return f"{geometry}, ceil_mode={self.ceil_mode}, {counting}\n{super().extra_repr()}"


class QuantizedAdaptiveAvgPool3d(_AvgPool3d):
    """Averages quantized values over windows that fit the output size, rounded once.

    Args:
        output_size: One number, or three; None keeps the input's size, as in ``torch.nn``.
        x: Qparams of the input; at most 8 bits, per tensor.
        y: Qparams of the output.

    Shape:
        uint8 or int8 [N, C, D, H, W] or [C, D, H, W] to [N, C, OD, OH, OW] or [C, OD, OH, OW].

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    def __init__(self, output_size: int | Sequence[int | None], x: QParams, y: QParams) -> None:
        super().__init__(x, y)
        self.output_size = tuple(output_size) if isinstance(output_size, Sequence) else (output_size,) * 3

    def forward(self, x: Tensor) -> Tensor:
        sizes = self._sizes(x)
        if all(outputs == 1 for _, outputs in sizes):
            return mean(self.take("x", x), [-3, -2, -1], True, *(self._packed or self.packed()))
        windows = self._windows(x)
        divisor = _products([w.extent for w in windows])
        if any(size % outputs for size, outputs in sizes):
            return self._reference(x, windows, divisor)
        blocks = [size // outputs for size, outputs in sizes]
        sums = F.avg_pool3d(self._whole_numbers(x, math.prod(blocks)), blocks, divisor_override=1)
        return self._rounded(sums, divisor)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        windows = self._windows(x)
        return self._reference(x, windows, _products([w.extent for w in windows]))

    def _sizes(self, x: Tensor) -> list[tuple[int, int]]:
        wanted = zip(x.shape[-3:], self.output_size, strict=True)
        return [(size, size if outputs is None else outputs) for size, outputs in wanted]

    def _windows(self, x: Tensor) -> list[Windows]:
        return [adaptive_windows(size, outputs) for size, outputs in self._sizes(x)]

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


def _products(counts: Sequence[Tensor]) -> Tensor:
    """Elements of the windows of three axes: int64 [OD, OH, OW]."""
    depth, rows, columns = counts
    return depth[:, None, None] * rows[:, None] * columns
