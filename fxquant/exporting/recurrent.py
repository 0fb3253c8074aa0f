"""The explicit form of recurrent layers: float products and gates of dequantized values, step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fxquant.exporting.qparams import (
    DynamicQParams,
    ExplicitQParams,
    FloatZeroPoints,
    as_dtype,
    explicit_qparams,
    weight_qparams,
)
from fxquant.exporting.weights import rounded_integers
from fxquant.fake_quantize.converted import DynamicFakeQuantize
from fxquant.graph.recurrent import RecurrentShape, stacked_bias
from fxquant.nn.fake_quantize import FakeQuantizedWeight
from fxquant.nn.quantized_recurrent import QuantizedRecurrent
from fxquant.nn.simulated_recurrent import run_in_float
from fxquant.plan.spec import QParams


class PerTensorRounding(nn.Module):
    """Quantizes values and dequantizes them at once, by known qparams."""

    def __init__(self, qparams: ExplicitQParams) -> None:
        super().__init__()
        self.qparams = qparams

    def forward(self, x: Tensor) -> Tensor:
        return as_dtype(self.qparams.dequantize(self.qparams.quantize(as_dtype(x, torch.float32))), x.dtype)


class Recurrent(nn.Module):
    """A recurrent layer whose matrices are dequantized in each call. A traced one has the steps of its example.

    Buffers: ``weight`` integers, the matrices one below the other, and ``bias`` float [rows] or None.

    Args:
        shape: Of the layer.
        weight: Integers.
        qparams: Theirs.
        bias: What is added to the products of each row.
        rounding: Rounds inputs and hidden states.
        dtype: Of the float layer.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        shape: RecurrentShape,
        weight: Tensor,
        qparams: QParams,
        bias: Tensor | None,
        rounding: nn.Module,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().clone())
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.weight_qparams: ExplicitQParams | FloatZeroPoints = weight_qparams(qparams)
        self.shape, self.rounding, self.dtype = shape, rounding, dtype

    @classmethod
    def of_int8(cls, module: QuantizedRecurrent) -> Recurrent:
        """Build the form of an int8 module."""
        x = module.x
        rounding = PerTensorRounding(explicit_qparams(module.qparams("x"))) if x is None else DynamicQParams(x)
        dtype = torch.float32 if module.float_result is None else module.float_result.dtype
        return cls(module.shape, module.unpacked_weight(), module.qparams("weight"), module.bias, rounding, dtype)

    @classmethod
    def of_simulation(cls, layer: Any) -> Recurrent:
        """Build the form of a layer of the simulation, or of the reference form."""
        inner, shape = layer.activation_fake_quant, RecurrentShape.of(layer)
        if isinstance(inner, DynamicFakeQuantize):
            rounding: nn.Module = DynamicQParams(inner.policy)
        else:
            rounding = PerTensorRounding(explicit_qparams(inner.qparams()))
        if isinstance(layer, FakeQuantizedWeight):
            weight, qparams, dtype = *rounded_integers(layer), layer.weight.dtype
        else:
            qparams = QParams(layer.weight_scheme, layer.weight_scale, layer.weight_zero_point)
            weight, dtype = layer.weight, layer.weight_dtype
        return cls(shape, weight, qparams, stacked_bias(layer), rounding, dtype)

    def forward(self, input: Any, hx: Any = None) -> Any:
        weight = as_dtype(self.weight_qparams.dequantize(self.weight), self.dtype)
        bias = None if self.bias is None else as_dtype(self.bias, self.dtype)
        return run_in_float(self.shape, weight, bias, self.rounding, input, hx, "a recurrent layer")
