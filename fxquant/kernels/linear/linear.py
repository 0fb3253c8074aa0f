"""``fxquant::linear``: an int8 linear layer, exact on every CPU. Schema, reference, shape function, packed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import OperatorCall, define_operator
from fxquant.kernels.conv.conv import ProductCall
from fxquant.kernels.conv.native import output_arguments, packed_arguments
from fxquant.kernels.conv.packing import PackedLayout, PackedWeight, unpack_weight, zero_point_correction
from fxquant.kernels.epilogue import Epilogue


@dataclass(eq=False, repr=False)
class LinearCall(ProductCall):
    """Multiply quantized values by a weight matrix, and requantize, to the bit as ``linear_reference`` defines it.

    The result is [..., out_features] of ``dtype``, contiguous. See :class:`ProductCall` for the arithmetic.
    """

    op: ClassVar[str] = "fxquant::linear"

    x: Tensor
    """uint8 or int8 [..., in_features]."""
    x_zero_point: int
    weight: Tensor
    """int8 [out_features, in_features], packed by :func:`~fxquant.kernels.conv.packing.pack_weight`."""
    zero_point_correction: Tensor
    """int32 [out_features], what sums begin at. This and the rest are as in ``fxquant::conv2d``."""
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

    def reference(self) -> Tensor:
        y = self.empty_result()
        if y.numel() == 0:
            return y
        integers = unpack_weight(self.weight, len(self.scale), self.x.shape[-1], ()).to(torch.float64)
        # float64 holds all sums exactly
        sums = F.linear(self.unsigned_input().to(torch.float64), integers) + self.zero_point_correction
        return y.copy_(self.apply_epilogue(sums, sums.dim() - 1))

    def empty_result(self) -> Tensor:
        self.check_input()
        if self.x.dim() == 0:
            raise KernelError(f"{self.op}: x has the wrong shape", got=[], expected="[..., in_features]")
        sizes = [*self.x.shape[:-1], self.scale.numel()]
        self.check_product(PackedLayout.of(self.scale.numel(), self.x.shape[-1], ()).shape, sizes)
        return torch.empty(sizes, dtype=self.dtype, device=self.x.device)


linear, reference = define_operator(LinearCall)

FLOAT_RESULT = (None, 1.0, 0, 1.0, 0, 0, 0, torch.float32)
"""Arguments of ``linear`` from ``residual`` on, where there is none and the result has float values."""


class NativeLinear:
    """A packed weight matrix, with everything a call of ``fxquant::linear`` needs beside its input.

    Calling it with uint8 or int8 [..., in_features] gives [..., out_features], equal to ``linear_reference`` bit for
    bit. Several threads may call it.

    Args:
        weight: int8 [out_features, in_features], zero point 0.
        x_dtype: uint8 or int8: how the input is stored.
        x_zero_point: Of the input.
        epilogue: Scales, bias and qparams of the output.
    """

    def __init__(self, weight: Tensor, x_dtype: torch.dtype, x_zero_point: int, epilogue: Epilogue) -> None:
        packed = PackedWeight.of(weight)
        self.unpacked = packed.unpacked
        """Gives the weight again."""
        self._arguments = (
            x_zero_point,
            *packed_arguments(packed, weight, x_dtype, x_zero_point, epilogue),
            None,
            *output_arguments(epilogue),
        )
        self._linear = torch.ops.fxquant.linear.default

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x, *self._arguments)


class DynamicLinear:
    """Do the same for inputs whose qparams are known only when they come; the results are float values.

    Args:
        weight: int8 [out_features, in_features], zero point 0.
        weight_scale: float32 [out_features], or [1] for one scale for all.
        bias: float32 [out_features], or None.
        x_dtype: uint8 or int8: how inputs are stored.
    """

    def __init__(self, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, x_dtype: torch.dtype) -> None:
        packed = PackedWeight.of(weight)
        self.unpacked = packed.unpacked
        """Gives the weight again."""
        self._weight = packed.values
        self._scale = weight_scale.expand(len(weight))
        self._zero_point_correction = zero_point_correction(weight, torch.uint8, 1)
        self.bias = torch.zeros_like(self._scale) if bias is None else bias
        """float32 [out_features]."""
        self._moved = 128 if x_dtype == torch.int8 else 0
        self._linear = torch.ops.fxquant.linear.default

    def __call__(self, x: Tensor, x_scale: float, x_zero_point: int, by: Callable[..., Tensor] | None = None) -> Tensor:
        """Map quantized ``x`` [..., in_features] to float32 [..., out_features], as ``linear_reference``.

        ``by`` runs in place of the operator: its reference.
        """
        zero_point_correction = self._zero_point_correction * (x_zero_point + self._moved)
        scale = self._scale * x_scale
        of_weight = (self._weight, zero_point_correction, scale, self.bias)
        return (by or self._linear)(x, x_zero_point, *of_weight, *FLOAT_RESULT)

    def captured(self, x: Tensor, x_scale: Tensor, x_zero_point: Tensor) -> Tensor:
        """Do the same in a graph, which knows the qparams, [1] each, only when it runs."""
        return torch.ops.fxquant.dynamic_linear.default(
            x, x_scale, x_zero_point, self._weight, self._zero_point_correction, self._scale, self.bias, self._moved
        )


@dataclass(eq=False, repr=False)
class DynamicLinearCall(OperatorCall):
    """Call ``linear`` for an input whose qparams, [1] each, are results of the graph; the result has float values."""

    op: ClassVar[str] = "fxquant::dynamic_linear"
    recordable: ClassVar[bool] = False
    composed: ClassVar[bool] = True

    x: Tensor
    x_scale: Tensor
    x_zero_point: Tensor
    weight: Tensor
    zero_point_correction: Tensor
    weight_scale: Tensor
    bias: Tensor
    moved: int

    def empty_result(self) -> Tensor:
        x = self.x
        return torch.empty([*x.shape[:-1], self.weight_scale.numel()], dtype=torch.float32, device=x.device)

    def reference(self) -> Tensor:
        zero_point = int(self.x_zero_point.item())
        zero_point_correction = self.zero_point_correction * (zero_point + self.moved)
        scale = self.weight_scale * self.x_scale
        return linear(self.x, zero_point, self.weight, zero_point_correction, scale, self.bias, *FLOAT_RESULT)


define_operator(DynamicLinearCall)
