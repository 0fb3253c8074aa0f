"""What the int8 convolutions and linear layers are called with: checks, and the definition of their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import check_qparams, check_result, check_stored, integer_range
from fxquant.kernels.checks import check_dtype
from fxquant.kernels.conv.packing import PackedOrder, unpack_weight
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.pool.windows import LARGEST

MOST_TAPS = 1 << 16
"""Largest window, in elements."""

_MOST_BYTES = 2**63 - 1

_CONVOLUTION = {2: F.conv2d, 3: F.conv3d}
_SHAPE = {2: "[N, C, H, W]", 3: "[N, C, D, H, W]"}
_CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


@dataclass(frozen=True, slots=True, eq=False)
class ConvCall:
    """The arguments of ``fxquant::conv2d`` and ``fxquant::conv3d``, in the order of their schemas."""

    x: Tensor
    x_zero_point: int
    weight: Tensor
    start: Tensor
    scale: Tensor
    bias: Tensor
    kernel_size: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    residual: Tensor | None
    residual_scale: float
    residual_zero_point: int
    y_scale: float
    y_zero_point: int
    quant_min: int
    quant_max: int
    dtype: torch.dtype

    def reference(self, spatial: int) -> Tensor:
        """The result in pure torch: the oracle of the tests, and the kernel of devices that have no native one."""
        y = self.empty_output(spatial)
        if y.numel() == 0:
            return y
        sides = [side for axis in reversed(range(spatial)) for side in self.padding[2 * axis : 2 * axis + 2]]
        padded = F.pad(as_unsigned(self.x), sides, value=self.x_zero_point - integer_range(self.x.dtype)[0])
        depth = self.x.shape[1] // self.groups
        integers = unpack_weight(self.weight, len(self.scale), depth, self.kernel_size, self.groups)
        walk = (tuple(self.stride), 0, tuple(self.dilation), self.groups)
        if depth:  # torch gives no channels where there are groups of none
            # A library may transform instead of summing; rounding makes whole numbers of its answer again.
            products = _CONVOLUTION[spatial](padded.double(), integers.double(), None, *walk).round()
        else:
            products = torch.zeros(y.shape, dtype=torch.float64, device=y.device)
        epilogue = epilogue_of(
            self.scale, self.bias, self.residual_scale, self.residual_zero_point, self.y_scale, self.y_zero_point,
            self.quant_min, self.quant_max, self.dtype,
        )  # fmt: skip
        return y.copy_(epilogue.apply(products + self.start.reshape(-1, *[1] * spatial), 1, self.residual))

    def empty_output(self, spatial: int) -> Tensor:
        """Check the arguments; an empty tensor of the result's shape, dtype and layout."""
        op, x, scale = f"fxquant::conv{spatial}d", self.x, self.scale
        check_input(op, x, self.x_zero_point, scale)
        if x.dim() != spatial + 2:
            raise KernelError(f"{op}: x has the wrong shape", got=list(x.shape), expected=_SHAPE[spatial])
        _check_numbers(op, "kernel_size", self.kernel_size, spatial, 1)
        _check_numbers(op, "stride", self.stride, spatial, 1)
        _check_numbers(op, "padding", self.padding, 2 * spatial, 0)
        _check_numbers(op, "dilation", self.dilation, spatial, 1)
        if math.prod(self.kernel_size) > MOST_TAPS:
            raise KernelError(
                f"{op}: kernel_size is too large", got=list(self.kernel_size), expected=f"at most {MOST_TAPS} elements"
            )
        if self.groups < 1 or x.shape[1] % self.groups or scale.numel() % self.groups:
            raise KernelError(
                f"{op}: groups is out of range",
                got=self.groups,
                expected="a divisor of the channels of x and of the result",
            )
        sizes = [x.shape[0], scale.numel(), *(self._windows(op, axis) for axis in range(spatial))]
        known = [max(1, size) for size in sizes if isinstance(size, int)]  # others are symbols, of a graph
        if math.prod(known) > _MOST_BYTES // 8:
            raise KernelError(f"{op}: the result is too large", got=sizes, expected="a size that memory has room for")
        packed = PackedOrder.of(scale.numel(), x.shape[1], self.kernel_size, self.groups).shape
        qparams = (self.y_scale, self.y_zero_point, self.quant_min, self.quant_max, self.dtype)
        check_rest(op, self.weight, packed, self.start, scale, self.bias, *qparams)
        check_residual(op, self.residual, sizes, self.residual_scale, self.residual_zero_point)
        return torch.empty(sizes, dtype=self.dtype, device=x.device, memory_format=_CHANNELS_LAST[spatial])

    def _windows(self, op: str, axis: int) -> int:
        """Windows along a spatial axis."""
        padded = self.x.shape[2 + axis] + self.padding[2 * axis] + self.padding[2 * axis + 1]
        reach = self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
        if padded < reach:
            raise KernelError(
                f"{op}: the window does not fit the padded input",
                got=f"{reach} and {padded}",
                expected="a window that is no longer than the input",
            )
        return (padded - reach) // self.stride[axis] + 1


def as_unsigned(x: Tensor) -> Tensor:
    """Stored integers as int32 from 0 to 255: an int8 is moved by 128, as its zero point is."""
    return x.to(torch.int32) - integer_range(x.dtype)[0]


def epilogue_of(
    scale: Tensor,
    bias: Tensor,
    residual_scale: float,
    residual_zero_point: int,
    y_scale: float,
    y_zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Epilogue:
    """The arguments of an operator as the epilogue that they mean."""
    return Epilogue(
        x_scale=1.0,
        weight_scale=scale,
        bias=bias,
        y_scale=y_scale,
        y_zero_point=y_zero_point,
        quant_min=quant_min,
        quant_max=quant_max,
        dtype=dtype,
        residual_scale=residual_scale,
        residual_zero_point=residual_zero_point,
    )


def check_input(op: str, x: Tensor, x_zero_point: int, scale: Tensor) -> None:
    """What the geometry is read from is as it should be."""
    check_stored(op, "x", x)
    low, high = integer_range(x.dtype)
    if not low <= x_zero_point <= high:
        raise KernelError(f"{op}: x_zero_point is out of range", got=x_zero_point, expected=f"{low} to {high}")
    check_dtype(op, "scale", scale, (torch.float32,))
    if scale.dim() != 1:
        raise KernelError(f"{op}: scale has the wrong shape", got=list(scale.shape), expected="[output channels]")


def check_rest(
    op: str,
    weight: Tensor,
    packed: list[int],
    start: Tensor,
    scale: Tensor,
    bias: Tensor,
    y_scale: float,
    y_zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> None:
    """Weight, values per channel and output grid are as they should be."""
    check_dtype(op, "weight", weight, (torch.int8,))
    if list(weight.shape) != packed:
        raise KernelError(
            f"{op}: weight has the wrong shape", got=list(weight.shape), expected=f"{packed}, as pack_weight gives it"
        )
    for argument, values, wanted in (("start", start, torch.int32), ("bias", bias, torch.float32)):
        check_dtype(op, argument, values, (wanted,))
        if values.shape != scale.shape:
            raise KernelError(
                f"{op}: {argument} has the wrong shape", got=list(values.shape), expected=list(scale.shape)
            )
    check_result(op, y_scale, y_zero_point, quant_min, quant_max, dtype)


def check_residual(op: str, residual: Tensor | None, sizes: list[int], scale: float, zero_point: int) -> None:
    """A residual is stored as the result is shaped."""
    if residual is None:
        return
    check_stored(op, "residual", residual)
    if list(residual.shape) != sizes:
        raise KernelError(
            f"{op}: residual has the wrong shape", got=list(residual.shape), expected=f"{sizes}, as the result"
        )
    check_qparams(op, "residual_", scale, zero_point, residual.dtype)


def _check_numbers(op: str, argument: str, values: Sequence[int], count: int, least: int) -> None:
    if len(values) != count or min(values) < least or max(values) > LARGEST:
        raise KernelError(
            f"{op}: {argument} is out of range",
            got=list(values),
            expected=f"{count} numbers of {least} to {LARGEST}",
        )
