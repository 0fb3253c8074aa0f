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
from fxquant.kernels.conv.packing import PackedLayout, unpack_weight
from fxquant.kernels.linear.reference import per_token_epilogue


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
