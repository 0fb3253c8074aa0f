"""``fxquant::conv2d`` and ``fxquant::conv3d``: int8 convolutions over images and volumes, exact on every CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import check_qparams, check_result, check_stored, integer_range
from fxquant.kernels.call import OperatorCall, define_operator
from fxquant.kernels.checks import check_packed_weight, check_vector
from fxquant.kernels.conv.packing import PackedLayout, unpack_weight
from fxquant.kernels.conv.reference import ConvGeometry, exact_sums, pad
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.pool.windows import LARGEST

MOST_TAPS = 1 << 16
"""Largest window, in elements."""

_MOST_BYTES = 2**63 - 1

_SHAPE = {2: "[N, C, H, W]", 3: "[N, C, D, H, W]"}
_CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


class ProductCall(OperatorCall):
    """Multiply quantized values by a packed weight, and requantize the sums.

    Subclasses declare these fields again, to fix the order of the schema.

    The sums are int32 and exact. What follows is float32, each step rounded, in this order: ``float(sum) * scale[c]``,
    ``+ bias[c]``, ``+ float(residual - residual_zero_point) * residual_scale``, and, unless ``dtype`` is float32,
    ``* (1 / y_scale)``, round to even, ``+ y_zero_point``, clamp.
    """

    x: Tensor
    x_zero_point: int
    weight: Tensor
    zero_point_correction: Tensor
    scale: Tensor
    bias: Tensor
    residual: Tensor | None
    residual_scale: float
    residual_zero_point: int
    y_scale: float
    y_zero_point: int
    quant_min: int
    quant_max: int
    dtype: torch.dtype

    def check_input(self) -> None:
        """Check what the sizes of the result are computed from."""
        op = self.op
        check_stored(op, "x", self.x)
        low, high = integer_range(self.x.dtype)
        if not low <= self.x_zero_point <= high:
            raise KernelError(f"{op}: x_zero_point is out of range", got=self.x_zero_point, expected=f"{low} to {high}")
        check_vector(op, "scale", self.scale, torch.float32)

    def check_product(self, packed: list[int], sizes: list[int]) -> None:
        """Check all arguments but the input and the geometry.

        Args:
            packed: Shape of the packed weight.
            sizes: Shape of the result.
        """
        op = self.op
        channels = self.scale.numel()
        check_packed_weight(op, self.weight, packed)
        check_vector(op, "zero_point_correction", self.zero_point_correction, torch.int32, channels)
        check_vector(op, "bias", self.bias, torch.float32, channels)
        check_result(op, self.y_scale, self.y_zero_point, self.quant_min, self.quant_max, self.dtype)
        if self.residual is None:
            return
        check_stored(op, "residual", self.residual)
        if list(self.residual.shape) != sizes:
            raise KernelError(
                f"{op}: residual has the wrong shape", got=list(self.residual.shape), expected=f"{sizes}, as the result"
            )
        check_qparams(op, "residual_", self.residual_scale, self.residual_zero_point, self.residual.dtype)

    def unsigned_input(self) -> Tensor:
        """Return ``x`` as int32 from 0 to 255: an int8 is moved by 128, as its zero point is."""
        return self.x.to(torch.int32) - integer_range(self.x.dtype)[0]

    def apply_epilogue(self, sums: Tensor, channel_dim: int) -> Tensor:
        """Turn exact sums, which begin at ``zero_point_correction``, into the result."""
        epilogue = Epilogue(
            x_scale=1.0,
            weight_scale=self.scale,
            bias=self.bias,
            y_scale=self.y_scale,
            y_zero_point=self.y_zero_point,
            quant_min=self.quant_min,
            quant_max=self.quant_max,
            dtype=self.dtype,
            residual_scale=self.residual_scale,
            residual_zero_point=self.residual_zero_point,
        )
        return epilogue.apply(sums, channel_dim, self.residual)


@dataclass(eq=False, repr=False)
class ConvCall(ProductCall):
    """Convolve quantized values, and requantize the sums, to the bit as ``conv_reference`` defines it.

    The result is [N, C_out, *output size] of ``dtype``, channels_last. See :class:`ProductCall` for the arithmetic.
    """

    spatial: ClassVar[int]
    """Number of spatial dimensions."""

    x: Tensor
    """uint8 or int8 [N, C_in, *size]; quickest if channels_last."""
    x_zero_point: int
    """A quantized value; also the value of the padding."""
    weight: Tensor
    """int8, as :func:`~fxquant.kernels.conv.packing.pack_weight` gives it."""
    zero_point_correction: Tensor
    """int32 [C_out], what sums begin at: as the function of this name in ``kernels/conv/packing.py`` gives it."""
    scale: Tensor
    """float32 [C_out], the scale of a sum: that of ``x`` times that of the weight."""
    bias: Tensor
    """float32 [C_out], float values."""
    kernel_size: Sequence[int]
    """Planes, rows and columns of the window; at most 65,536 elements."""
    stride: Sequence[int]
    padding: Sequence[int]
    """Front, back, top, bottom, left, right."""
    dilation: Sequence[int]
    """Distance of a window's elements."""
    groups: int
    """Divides C_in and C_out."""
    residual: Tensor | None
    """uint8 or int8, in the shape of the result."""
    residual_scale: float
    residual_zero_point: int
    y_scale: float
    """The scale of the result. This and the next three are not looked at if ``dtype`` is float32."""
    y_zero_point: int
    quant_min: int
    """Smallest integer of the result, inside the range of ``dtype``."""
    quant_max: int
    """Largest integer of the result."""
    dtype: torch.dtype
    """uint8 or int8: the result is requantized. float32: it is float values, not rounded."""

    def reference(self) -> Tensor:
        y = self.empty_result()
        if y.numel() == 0:
            return y
        geometry = ConvGeometry(
            kernel_size=tuple(self.kernel_size),
            stride=tuple(self.stride),
            dilation=tuple(self.dilation),
            groups=self.groups,
            before=tuple(self.padding[::2]),
            after=tuple(self.padding[1::2]),
            padding_mode="zeros",
        )
        in_channels = self.x.shape[1] // self.groups
        weight = unpack_weight(self.weight, len(self.scale), in_channels, self.kernel_size, self.groups)
        padded = pad(self.unsigned_input(), geometry, self.x_zero_point - integer_range(self.x.dtype)[0])
        products = exact_sums(padded, weight.to(torch.int32), geometry).double()
        sums = products + self.zero_point_correction.reshape(-1, *[1] * self.spatial)
        return y.copy_(self.apply_epilogue(sums, 1))

    def empty_result(self) -> Tensor:
        op, x, scale, spatial = self.op, self.x, self.scale, self.spatial
        self.check_input()
        if x.dim() != spatial + 2:
            raise KernelError(f"{op}: x has the wrong shape", got=list(x.shape), expected=_SHAPE[spatial])
        self._check_numbers("kernel_size", spatial, 1)
        self._check_numbers("stride", spatial, 1)
        self._check_numbers("padding", 2 * spatial, 0)
        self._check_numbers("dilation", spatial, 1)
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
        sizes = [x.shape[0], scale.numel(), *(self._windows(axis) for axis in range(spatial))]
        known = [max(1, size) for size in sizes if isinstance(size, int)]  # others are symbols, of a graph
        if math.prod(known) > _MOST_BYTES // 8:
            raise KernelError(f"{op}: the result is too large", got=sizes, expected="a size that memory has room for")
        self.check_product(PackedLayout.of(scale.numel(), x.shape[1], self.kernel_size, self.groups).shape, sizes)
        return torch.empty(sizes, dtype=self.dtype, device=x.device, memory_format=_CHANNELS_LAST[spatial])

    def _windows(self, axis: int) -> int:
        """Count the windows along a spatial axis."""
        padded = self.x.shape[2 + axis] + self.padding[2 * axis] + self.padding[2 * axis + 1]
        reach = self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
        if padded < reach:
            raise KernelError(
                f"{self.op}: the window does not fit the padded input",
                got=f"{reach} and {padded}",
                expected="a window that is no longer than the input",
            )
        return (padded - reach) // self.stride[axis] + 1

    def _check_numbers(self, argument: str, count: int, least: int) -> None:
        values = getattr(self, argument)
        if len(values) != count or min(values) < least or max(values) > LARGEST:
            raise KernelError(
                f"{self.op}: {argument} is out of range",
                got=list(values),
                expected=f"{count} numbers of {least} to {LARGEST}",
            )


class Conv2dCall(ConvCall):
    """Convolve images of quantized values; x is [N, C_in, H, W]. See :class:`ConvCall`."""

    op: ClassVar[str] = "fxquant::conv2d"
    spatial: ClassVar[int] = 2


class Conv3dCall(ConvCall):
    """Convolve volumes of quantized values; x is [N, C_in, D, H, W]. See :class:`ConvCall`."""

    op: ClassVar[str] = "fxquant::conv3d"
    spatial: ClassVar[int] = 3


conv2d, conv2d_reference = define_operator(Conv2dCall)
conv3d, conv3d_reference = define_operator(Conv3dCall)
