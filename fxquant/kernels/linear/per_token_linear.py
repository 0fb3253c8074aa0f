"""``fxquant::per_token_linear``: an int8 linear layer whose input has a scale and a zero point for each row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import check_stored, integer_range
from fxquant.kernels.call import OperatorCall, define_operator
from fxquant.kernels.checks import check_packed_weight, check_vector
from fxquant.kernels.conv.packing import PackedLayout, PackedWeight, unpack_weight, zero_point_correction
from fxquant.kernels.linear.reference import per_token_epilogue, per_token_reference
from fxquant.kernels.quantize.quantize_per_token import quantize_per_token
from fxquant.kernels.quantize.quantize_per_token import reference as quantize_reference


@dataclass(eq=False, repr=False)
class PerTokenLinearCall(OperatorCall):
    """Multiply quantized values, of which each row has qparams of its own, by a weight matrix, to float values.

    The sums are int32 and exact: ``a = sum(q * w) - z[m] * sum(w[c])``. What follows is float32, each step rounded, in
    this order: ``float(a) * (s[m] * scale[c])``, ``+ bias[c]``. It is to the bit what ``per_token_reference`` defines.

    Returns:
        float32 [..., out_features], contiguous.
    """

    op: ClassVar[str] = "fxquant::per_token_linear"

    x: Tensor
    """uint8 or int8 [..., in_features]."""
    x_scale: Tensor
    """float32 [rows]: ``s``, in the order of the rows of ``x`` in memory."""
    x_zero_point: Tensor
    """int32 [rows]: ``z``."""
    weight: Tensor
    """int8 [out_features, in_features], packed by :func:`~fxquant.kernels.conv.packing.pack_weight`."""
    zero_point_correction: Tensor
    """int32 [out_features], what sums begin at: ``-128 * sum(w[c])`` of an int8 ``x``, 0 of uint8."""
    weight_sums: Tensor
    """int32 [out_features]: ``sum(w[c])``."""
    scale: Tensor
    """float32 [out_features], of the weight."""
    bias: Tensor
    """float32 [out_features]."""

    def reference(self) -> Tensor:
        y = self.empty_result()
        if y.numel() == 0:
            return y
        integers = unpack_weight(self.weight, len(self.scale), self.x.shape[-1], ()).to(torch.float64)
        unsigned = self.x.to(torch.int32) - integer_range(self.x.dtype)[0]
        # float64 holds all sums exactly
        sums = F.linear(unsigned.to(torch.float64), integers) + self.zero_point_correction
        zero_point = self.x_zero_point.view(*self.x.shape[:-1], 1).to(torch.float64)
        return y.copy_(per_token_epilogue(sums - zero_point * self.weight_sums, self.x_scale, self.scale, self.bias))

    def empty_result(self) -> Tensor:
        op, x, scale = self.op, self.x, self.scale
        check_stored(op, "x", x)
        check_vector(op, "scale", scale, torch.float32)
        if x.dim() == 0:
            raise KernelError(f"{op}: x has the wrong shape", got=[], expected="[..., in_features]")
        channels, rows = scale.numel(), math.prod(x.shape[:-1])
        check_packed_weight(op, self.weight, PackedLayout.of(channels, x.shape[-1], ()).shape)
        check_vector(op, "zero_point_correction", self.zero_point_correction, torch.int32, channels)
        check_vector(op, "bias", self.bias, torch.float32, channels)
        check_vector(op, "x_scale", self.x_scale, torch.float32, rows)
        check_vector(op, "x_zero_point", self.x_zero_point, torch.int32, rows)
        check_vector(op, "weight_sums", self.weight_sums, torch.int32, channels)
        return torch.empty([*x.shape[:-1], scale.numel()], dtype=torch.float32, device=x.device)


per_token_linear, reference = define_operator(PerTokenLinearCall)

Choice = tuple[float, int, int, int | None, torch.dtype]
"""Smallest scale, limits, zero point of symmetric quantization, and dtype."""


class PerTokenLinear:
    """A packed weight matrix that quantizes float values row by row, and multiplies them.

    Calling it with floats [..., in_features] gives float32 [..., out_features]. Several threads may call it.

    Args:
        weight: int8 [out_features, in_features], zero point 0.
        weight_scale: float32 [out_features], or [1] for one scale for all.
        bias: float32 [out_features], or None.
        choice: How rows are quantized: what ``quantize_per_token`` takes beside its input.
    """

    def __init__(self, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, choice: Choice) -> None:
        packed = PackedWeight.of(weight)
        self.unpacked = packed.unpacked
        """Gives the weight again."""
        scale = weight_scale.expand(len(weight)).contiguous()
        self._product = (
            packed.values,
            zero_point_correction(weight, choice[-1], 0),
            -zero_point_correction(weight, torch.uint8, 1),
            scale,
            torch.zeros_like(scale) if bias is None else bias,
        )
        self._choice = choice
        self._quantize = torch.ops.fxquant.quantize_per_token.default
        self._multiply = torch.ops.fxquant.per_token_linear.default

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(*self._quantize(x, *self._choice), *self._product)


@dataclass(frozen=True, slots=True)
class PerTokenLinearByReference:
    """The same in plain torch, for weights with zero points, which the operator does not take.

    ``weight`` is int8 [out_features, in_features]; zero point and scale have [out_features] or [1].
    """

    weight: Tensor
    weight_zero_point: Tensor
    weight_scale: Tensor
    bias: Tensor | None
    choice: Choice

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(*quantize_per_token(x, *self.choice))

    def reference(self, x: Tensor) -> Tensor:
        """Quantize in plain torch, too."""
        return self._multiply(*quantize_reference(x, *self.choice))

    def _multiply(self, q: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        weight = (self.weight, self.weight_zero_point, self.weight_scale, self.bias)
        return per_token_reference(q, scale, zero_point, *weight)
