"""``fxquant::conv3d``: an int8 convolution over volumes, exact on every CPU. Schema, reference, shape function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxquant.kernels.conv.call import ConvCall
from fxquant.kernels.library import define


def conv3d(
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

    Args:
        x: uint8 or int8 [N, C_in, D, H, W]; quickest if channels_last_3d.
        x_zero_point: Of ``x``, in steps; also the value of its padding.
        weight: int8, packed by :func:`~fxquant.kernels.conv.packing.pack_weight`.
        start: int32 [C_out], what sums begin at; this and the rest as :func:`~fxquant.kernels.conv.conv2d.conv2d`.
        scale: float32 [C_out].
        bias: float32 [C_out].
        kernel_size: Planes, rows and columns; at most 65,536 elements.
        stride: For planes, rows and columns, as ``dilation``.
        padding: Front, back, top, bottom, left, right.
        dilation: Distance of a window's elements.
        groups: Divides C_in and C_out.
        residual: uint8 or int8 [N, C_out, OD, OH, OW], or None.
        residual_scale: Of the residual.
        residual_zero_point: Of the residual.
        y_scale: Of the output; this and the next three are not looked at if ``dtype`` is float32.
        y_zero_point: Of the output.
        quant_min: Smallest integer of the output, inside the range of ``dtype``.
        quant_max: Largest integer of the output.
        dtype: uint8 or int8: how the output is stored. float32: real numbers, not rounded to any grid.

    Returns:
        [N, C_out, OD, OH, OW] of ``dtype``, channels_last_3d.

    Raises:
        RuntimeError: an argument is not as above; the message names it.
    """
    return torch.ops.fxquant.conv3d.default(
        x, x_zero_point, weight, start, scale, bias, kernel_size, stride, padding, dilation, groups, residual,
        residual_scale, residual_zero_point, y_scale, y_zero_point, quant_min, quant_max, dtype,
    )  # fmt: skip


def reference(*args: Any, **kwargs: Any) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one."""
    return ConvCall(*args, **kwargs).reference(3)


define(
    "conv3d(Tensor x, int x_zero_point, Tensor weight, Tensor start, Tensor scale, Tensor bias, int[] kernel_size, "
    "int[] stride, int[] padding, int[] dilation, int groups, Tensor? residual, float residual_scale, "
    "int residual_zero_point, float y_scale, int y_zero_point, int quant_min, int quant_max, ScalarType dtype) "
    "-> Tensor",
    reference=reference,
    fake=lambda *args, **kwargs: ConvCall(*args, **kwargs).empty_output(3),
)
