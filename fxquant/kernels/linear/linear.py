"""``fxquant::linear``: an int8 linear layer, exact on every CPU. Schema, reference, shape function, packed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import define_operator
from fxquant.kernels.conv.conv import ProductCall
from fxquant.kernels.conv.native import output_arguments, packed_arguments
from fxquant.kernels.conv.packing import PackedLayout, PackedWeight, unpack_weight
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
        self._arguments: tuple[Any, ...] = (
            x_zero_point,
            *packed_arguments(packed, weight, x_dtype, x_zero_point, epilogue),
            None,
            *output_arguments(epilogue),
        )
        self._linear = torch.ops.fxquant.linear.default

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x, *self._arguments)

    def reference(self, x: Tensor) -> Tensor:
        """Do the same in plain torch."""
        return reference(x, *self._arguments)
