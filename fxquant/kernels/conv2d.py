"""``fxquant::conv2d``: an int8 convolution, exact on every CPU. Schema, reference, shape function, packed form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import check_grid, check_result, check_stored, float32, integer_range
from fxquant.kernels.checks import check_dtype
from fxquant.kernels.conv_reference import ConvGeometry, pad
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.library import define
from fxquant.kernels.packing import PackedOrder, PackedWeight, start_values, unpack_weight

OP = "fxquant::conv2d"

MOST_TAPS = 256
"""Largest window, in elements."""


def conv2d(
    x: Tensor,
    x_zero_point: int,
    weight: Tensor,
    start: Tensor,
    scale: Tensor,
    bias: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    residual: Tensor | None,
    residual_scale: float,
    residual_zero_point: int,
    y_scale: float,
    y_zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Convolve stored integers, and requantize the sums, to the bit as ``conv_reference`` defines it.

    The sums are int32 and exact. What follows is float32, each step rounded, in this order: ``float(sum) * scale[c]``,
    ``+ bias[c]``, ``+ float(residual - residual_zero_point) * residual_scale``, and, unless ``dtype`` is float32,
    ``* (1 / y_scale)``, round to even, ``+ y_zero_point``, clamp.

    Args:
        x: uint8 or int8 [N, C_in, H, W]; quickest if channels_last.
        x_zero_point: Of ``x``, in steps; also the value of its padding.
        weight: int8, as :func:`~fxquant.kernels.packing.pack_weight` gives it.
        start: int32 [C_out], what sums begin at: :func:`~fxquant.kernels.packing.start_values`.
        scale: float32 [C_out], real units per step of a sum: that of ``x`` times that of the weight.
        bias: float32 [C_out], real units.
        kernel_size: Rows and columns; at most 256 elements.
        stride: For rows and columns, as ``dilation``.
        padding: Top, bottom, left, right.
        dilation: Distance of a window's elements.
        groups: Divides C_in and C_out.
        residual: uint8 or int8 [N, C_out, OH, OW], or None.
        residual_scale: Real units per step.
        residual_zero_point: In steps.
        y_scale: Of the output; this and the next three are not looked at if ``dtype`` is float32.
        y_zero_point: Of the output.
        quant_min: Smallest integer of the output, inside the range of ``dtype``.
        quant_max: Largest integer of the output.
        dtype: uint8 or int8: how the output is stored. float32: real numbers, not rounded to any grid.

    Returns:
        [N, C_out, OH, OW] of ``dtype``, channels_last.

    Raises:
        RuntimeError: an argument is not as above; the message names it.
    """
    return torch.ops.fxquant.conv2d.default(
        x, x_zero_point, weight, start, scale, bias, kernel_size, stride, padding, dilation, groups, residual,
        residual_scale, residual_zero_point, y_scale, y_zero_point, quant_min, quant_max, dtype,
    )  # fmt: skip


def reference(
    x: Tensor,
    x_zero_point: int,
    weight: Tensor,
    start: Tensor,
    scale: Tensor,
    bias: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    residual: Tensor | None,
    residual_scale: float,
    residual_zero_point: int,
    y_scale: float,
    y_zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one."""
    y = empty_output(
        x, x_zero_point, weight, start, scale, bias, kernel_size, stride, padding, dilation, groups, residual,
        residual_scale, residual_zero_point, y_scale, y_zero_point, quant_min, quant_max, dtype,
    )  # fmt: skip
    if y.numel() == 0:
        return y
    top, bottom, left, right = padding
    padded = F.pad(as_unsigned(x), (left, right, top, bottom), value=x_zero_point - integer_range(x.dtype)[0])
    depth = x.shape[1] // groups
    integers = unpack_weight(weight, len(scale), depth, kernel_size, groups).to(torch.float64)
    # A library may transform instead of summing; rounding makes whole numbers of its answer again.
    products = F.conv2d(padded.to(torch.float64), integers, None, tuple(stride), 0, tuple(dilation), groups).round()
    epilogue = epilogue_of(
        scale, bias, residual_scale, residual_zero_point, y_scale, y_zero_point, quant_min, quant_max, dtype
    )
    return y.copy_(epilogue.apply(products + start.reshape(-1, 1, 1), 1, residual))


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


def empty_output(
    x: Tensor,
    x_zero_point: int,
    weight: Tensor,
    start: Tensor,
    scale: Tensor,
    bias: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    residual: Tensor | None,
    residual_scale: float,
    residual_zero_point: int,
    y_scale: float,
    y_zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Check the arguments; an empty tensor of the result's shape, dtype and layout."""
    check_input(OP, x, x_zero_point, scale)
    if x.dim() != 4:
        raise KernelError(f"{OP}: x has the wrong shape", got=list(x.shape), expected="[N, C, H, W]")
    _check_numbers("kernel_size", kernel_size, 2, 1)
    _check_numbers("stride", stride, 2, 1)
    _check_numbers("padding", padding, 4, 0)
    _check_numbers("dilation", dilation, 2, 1)
    if kernel_size[0] * kernel_size[1] > MOST_TAPS:
        raise KernelError(
            f"{OP}: kernel_size is too large", got=list(kernel_size), expected=f"at most {MOST_TAPS} elements"
        )
    if groups < 1 or x.shape[1] % groups or scale.numel() % groups:
        raise KernelError(
            f"{OP}: groups is out of range", got=groups, expected="a divisor of the channels of x and of the result"
        )
    sizes = [x.shape[0], scale.numel()]
    for axis in range(2):
        padded = x.shape[2 + axis] + padding[2 * axis] + padding[2 * axis + 1]
        reach = dilation[axis] * (kernel_size[axis] - 1) + 1
        if padded < reach:
            raise KernelError(
                f"{OP}: the window does not fit the padded input",
                got=f"{reach} and {padded}",
                expected="a window that is no longer than the input",
            )
        sizes.append((padded - reach) // stride[axis] + 1)
    packed = PackedOrder.of(scale.numel(), x.shape[1], kernel_size, groups).shape
    check_rest(OP, weight, packed, start, scale, bias, y_scale, y_zero_point, quant_min, quant_max, dtype)
    check_residual(OP, residual, sizes, residual_scale, residual_zero_point)
    return torch.empty(sizes, dtype=dtype, device=x.device, memory_format=torch.channels_last)


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
    check_grid(op, "residual_", scale, zero_point, residual.dtype)


def _check_numbers(argument: str, values: Sequence[int], count: int, least: int) -> None:
    if len(values) != count or min(values) < least:
        raise KernelError(
            f"{OP}: {argument} is out of range", got=list(values), expected=f"{count} numbers of at least {least}"
        )


class NativeConv:
    """A packed weight, with everything a call of ``fxquant::conv2d`` needs beside its input.

    Calling it with uint8 or int8 [N, C_in, *spatial], and optionally a residual that broadcasts to the output, gives
    [N, C_out, *out] in channels_last order, equal to ``conv_reference`` bit for bit. Several threads may call it.

    Args:
        weight: int8 [C_out, C_in / groups, *kernel_size], zero point 0.
        x_dtype: uint8 or int8: how the input is stored.
        x_zero_point: Of the input, in steps.
        geometry: Stride, padding, dilation, groups; 1 or 2 spatial dimensions.
        epilogue: Scales, bias and output grid.
    """

    def __init__(
        self, weight: Tensor, x_dtype: torch.dtype, x_zero_point: int, geometry: ConvGeometry, epilogue: Epilogue
    ) -> None:
        self._row = geometry.spatial == 1
        self._geometry = geometry.as_image() if self._row else geometry
        self._pad_first = geometry.padding_mode != "zeros" and any((*geometry.before, *geometry.after))
        self._x_zero_point = x_zero_point
        self._channels = len(weight)
        (top, left), (bottom, right) = self._geometry.before, self._geometry.after
        padding = [0] * 4 if self._pad_first else [top, bottom, left, right]
        packed = PackedWeight.of(weight, geometry.groups)
        self.unpacked = packed.unpacked
        """Gives the weight again."""
        self._before = (
            x_zero_point,
            *packed_arguments(packed, weight, x_dtype, x_zero_point, epilogue),
            list(self._geometry.kernel_size),
            list(self._geometry.stride),
            padding,
            list(self._geometry.dilation),
            geometry.groups,
        )
        self._after = output_arguments(epilogue)
        self._conv = torch.ops.fxquant.conv2d.default

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self._row:
            x, residual = x.unsqueeze(2), None if residual is None else residual.unsqueeze(-2)
        if residual is not None:
            residual = residual.expand(len(x), self._channels, *self._geometry.output_size(x.shape[2:]))
        if self._pad_first:
            x = pad(x, self._geometry, self._x_zero_point)
        y = self._conv(x, *self._before, residual, *self._after)
        return y.squeeze(2) if self._row else y


def packed_arguments(
    packed: PackedWeight, weight: Tensor, x_dtype: torch.dtype, x_zero_point: int, epilogue: Epilogue
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weight, start, scale and bias, as the operators take them."""
    scale = (epilogue.weight_scale * float32(epilogue.x_scale)).expand(len(weight)).contiguous()
    bias = torch.zeros_like(scale) if epilogue.bias is None else epilogue.bias  # of no bias, 0 makes the same integers
    return packed.values, start_values(weight, x_dtype, x_zero_point), scale, bias


def output_arguments(epilogue: Epilogue) -> tuple[float | int | torch.dtype, ...]:
    """All arguments from ``residual_scale`` on."""
    return (
        epilogue.residual_scale,
        epilogue.residual_zero_point,
        epilogue.y_scale,
        epilogue.y_zero_point,
        epilogue.quant_min,
        epilogue.quant_max,
        epilogue.dtype,
    )


define(
    "conv2d(Tensor x, int x_zero_point, Tensor weight, Tensor start, Tensor scale, Tensor bias, int[] kernel_size, "
    "int[] stride, int[] padding, int[] dilation, int groups, Tensor? residual, float residual_scale, "
    "int residual_zero_point, float y_scale, int y_zero_point, int quant_min, int quant_max, ScalarType dtype) "
    "-> Tensor",
    reference=reference,
    fake=empty_output,
)
