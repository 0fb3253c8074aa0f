"""Linear layers on floats whose weight is stored in 4 or 8 bits, and dequantized as it is read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fxquant.fake_quantize.qparams import to_integers
from fxquant.kernels.library import native_status
from fxquant.kernels.linear.grouped_weight import GroupedWeight
from fxquant.kernels.linear.weight_only_linear import reference, weight_only_linear
from fxquant.nn.base import FloatResult, check_features
from fxquant.nn.fake_quantize import DequantizedWeight
from fxquant.nn.weight import WeightedModule, kernel_of
from fxquant.nn.weight_forms import with_dequantized_weight
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import QParams, QScheme


class PackedGroups:
    """What a call of ``fxquant::weight_only_linear`` needs beside its input.

    Args:
        weight: uint8 or int8 [out_features, in_features].
        qparams: Of the weight.
        bias: float32 [out_features], or None.
    """

    def __init__(self, weight: Tensor, qparams: QParams, bias: Tensor | None) -> None:
        packed = GroupedWeight.of(weight, qparams.scale, qparams.zero_point, qparams.scheme.bits)
        self.unpacked = packed.unpacked
        """Gives the weight again."""
        bias = torch.zeros(len(weight), device=weight.device) if bias is None else bias
        self.arguments = (packed.values, packed.scale, packed.zero_point, bias, packed.bits)

    def __call__(self, x: Tensor) -> Tensor:
        return weight_only_linear(x, *self.arguments)


class QuantizedWeightOnlyLinear(WeightedModule):
    """``x @ weight.T + bias`` of floats, with a weight of integers that never becomes a float matrix.

    ``fxquant.kernels.weight_only_linear`` defines the result to the bit. Weights of up to 4 bits lie two to a byte once
    the module was called. The gradient reaches the input.

    Args:
        linear: The float layer.
        weight: Qparams of the weight that :meth:`takes` accepts.

    Shape:
        Floats [..., in_features] to floats [..., out_features], in the form that ``float_result`` says.
    """

    bias: Tensor | None
    weight_scale: Tensor
    weight_zero_point: Tensor

    def __init__(self, linear: nn.Linear, weight: QParams) -> None:
        super().__init__()
        self.add_weight(
            to_integers(linear.weight.detach(), weight.scale, weight.zero_point, weight.scheme).contiguous()
        )
        bias = linear.bias
        self.register_buffer("bias", None if bias is None else bias.detach().to(torch.float32).clone())
        self.add_qparams("weight", weight)
        self.float_result = FloatResult(linear.weight.dtype)
        self.in_features = linear.weight.shape[1]

    @staticmethod
    def takes(scheme: QScheme, dtype: torch.dtype = torch.float32) -> bool:
        """Tell whether weights can be packed so: of at most 8 bits, with scales per tensor, row, or group of a row.

        Args:
            scheme: Of the weight.
            dtype: Of the float weight. Products are float32, so a float64 layer does without.
        """
        bits, axis = scheme.bits, scheme.axis
        return bits <= 8 and axis in (None, 0, -2) and not scheme.float_qparams and dtype != torch.float64

    def forward(self, input: Tensor) -> Tensor:
        check_features(self, input, self.in_features)
        return self.finish_float_result((self._packed or self.packed())(input.to(torch.float32)))

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        check_features(self, x, self.in_features)
        return self.finish_float_result(reference(x.to(torch.float32), *self._packed_groups().arguments))

    def kernel(self) -> str:
        """Return what runs: ``native``, or ``reference`` and why."""
        status, device = native_status(), self.weight_scale.device.type
        missing = "" if device in status.devices else status.reason or f"no native kernels for {device}"
        return kernel_of(missing)

    def pack(self) -> PackedGroups:
        return self._packed_groups()

    def _packed_groups(self) -> PackedGroups:
        self._check_calibrated()
        return self._packed or PackedGroups(self.unpacked_weight(), self.qparams("weight"), self.bias)

    def extra_repr(self) -> str:
        bias = "" if self.bias is not None else ", bias=False"
        return f"{self.weight_shape[1]}, {self.weight_shape[0]}{bias}\n{super().extra_repr()}"


def weight_only(unit: UnitView) -> QuantizedWeightOnlyLinear | DequantizedWeight:
    """Build the module of a unit, from its layer ``linear``. With other qparams it makes a float weight per call."""
    layer: Any = unit.modules["linear"]
    weight = unit.qparams["weight"]
    if QuantizedWeightOnlyLinear.takes(weight.scheme, layer.weight.dtype):
        return QuantizedWeightOnlyLinear(layer, weight)
    return with_dequantized_weight(layer, weight)
