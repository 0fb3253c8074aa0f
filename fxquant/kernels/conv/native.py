"""A convolution's packed weight, ready to be called: int8 convolutions of one to three dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.kernels.arithmetic import float32
from fxquant.kernels.conv.packing import PackedWeight, zero_point_correction
from fxquant.kernels.conv.reference import ConvGeometry, pad
from fxquant.kernels.epilogue import Epilogue


class NativeConv:
    """A packed weight, with everything a call of ``fxquant::conv2d`` or ``conv3d`` needs beside its input.

    Calling it with uint8 or int8 [N, C_in, *spatial], and optionally a residual that broadcasts to the output, gives
    [N, C_out, *out] in channels_last order, equal to ``conv_reference`` bit for bit. Several threads may call it.

    Args:
        weight: int8 [C_out, C_in / groups, *kernel_size], zero point 0.
        x_dtype: uint8 or int8: how the input is stored.
        x_zero_point: Of the input, as a quantized value.
        geometry: Stride, padding, dilation, groups; 1 to 3 spatial dimensions.
        epilogue: Scales, bias and the qparams of the output.
    """

    def __init__(
        self, weight: Tensor, x_dtype: torch.dtype, x_zero_point: int, geometry: ConvGeometry, epilogue: Epilogue
    ) -> None:
        # One dimension: a convolution over images of one row. Padding other than zeros is copied around the input.
        self._is_1d = geometry.spatial == 1
        self._geometry = geometry.as_image() if self._is_1d else geometry
        self._pad_first = geometry.padding_mode != "zeros" and any((*geometry.before, *geometry.after))
        self._x_zero_point = x_zero_point
        self._channels = len(weight)
        sides = [side for pair in zip(self._geometry.before, self._geometry.after, strict=True) for side in pair]
        padding = [0] * len(sides) if self._pad_first else sides
        packed = PackedWeight.of(weight, geometry.groups)  # reordered here, once
        self.unpacked = packed.unpacked
        """Returns the weight as it was before packing."""
        # The arguments of the operator before and after the residual, in the order of ConvCall.
        self._leading = (
            x_zero_point,
            *packed_arguments(packed, weight, x_dtype, x_zero_point, epilogue),
            list(self._geometry.kernel_size),
            list(self._geometry.stride),
            padding,
            list(self._geometry.dilation),
            geometry.groups,
        )
        self._trailing = output_arguments(epilogue)
        # Declared in conv.py; the native side is conv2d_cpu in csrc/conv/cpu/conv.cpp.
        self._conv = getattr(torch.ops.fxquant, f"conv{self._geometry.spatial}d").default

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self._is_1d:
            x = x.unsqueeze(2)
        if residual is not None:
            out = self._geometry.output_size(x.shape[2:])
            residual = residual.expand(x.shape[0], self._channels, *(out[1:] if self._is_1d else out))
            residual = residual.unsqueeze(2) if self._is_1d else residual
        if self._pad_first:
            x = pad(x, self._geometry, self._x_zero_point)
        y = self._conv(x, *self._leading, residual, *self._trailing)
        return y.squeeze(2) if self._is_1d else y


def packed_arguments(
    packed: PackedWeight, weight: Tensor, x_dtype: torch.dtype, x_zero_point: int, epilogue: Epilogue
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the arguments of the operators from ``weight`` to ``bias``."""
    scale = (epilogue.weight_scale * float32(epilogue.x_scale)).expand(len(weight)).contiguous()
    bias = torch.zeros_like(scale) if epilogue.bias is None else epilogue.bias  # of no bias, 0 makes the same integers
    return packed.values, zero_point_correction(weight, x_dtype, x_zero_point), scale, bias


def output_arguments(epilogue: Epilogue) -> tuple[float | int | torch.dtype, ...]:
    """Return the arguments of the operators from ``residual_scale`` on."""
    return (
        epilogue.residual_scale,
        epilogue.residual_zero_point,
        epilogue.y_scale,
        epilogue.y_zero_point,
        epilogue.quant_min,
        epilogue.quant_max,
        epilogue.dtype,
    )
