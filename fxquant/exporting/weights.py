"""The explicit form of layers with a weight: its integers are dequantized in each call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import LoweringError
from fxquant.exporting.qparams import DynamicQParams, as_dtype, explicit_qparams, weight_qparams
from fxquant.exporting.units import (
    Convolution,
    ExplicitUnit,
    Linear,
    TransposedConvolution,
    WeightLayer,
    clamped,
)
from fxquant.fake_quantize.qparams import to_integers
from fxquant.kernels.embedding.lookup import HALF_BITS, unpack_halves
from fxquant.nn.conv import QuantizedConv
from fxquant.nn.conv_transpose import QuantizedConvTranspose, mirrored_weight
from fxquant.nn.embedding import QuantizedEmbedding, QuantizedEmbeddingBag
from fxquant.nn.fake_quantize import DequantizedWeight, FakeQuantizedWeight
from fxquant.nn.linear import QuantizedDynamicLinear, QuantizedLinear
from fxquant.nn.weight_only import QuantizedWeightOnlyLinear
from fxquant.plan.spec import QParams


def around(operator: nn.Module, module: Any) -> ExplicitUnit:
    """Put the qparams of input, result and residual around a layer."""
    y = explicit_qparams(module.qparams("y")) if "y" in module._schemes else None
    residual = explicit_qparams(module.qparams("residual")) if "residual" in module._schemes else None
    dtype = torch.float32 if module.float_result is None else module.float_result.dtype
    return ExplicitUnit(operator, [explicit_qparams(module.qparams("x"))], y, module.activation, dtype, residual)


def convolution(module: QuantizedConv) -> nn.Module:
    """Rewrite a convolution, with residual and activation."""
    qparams = explicit_qparams(module.qparams("weight"))
    return around(Convolution(module.unpacked_weight(), qparams, module.bias, module.geometry), module)


def linear(module: QuantizedLinear) -> nn.Module:
    """Rewrite a linear layer, with activation."""
    return around(Linear(module.unpacked_weight(), explicit_qparams(module.qparams("weight")), module.bias), module)


class DynamicLinear(Linear):
    """A linear layer, with activation, whose input is quantized by qparams of its own range; its result is float."""

    def __init__(self, module: QuantizedDynamicLinear) -> None:
        super().__init__(module.unpacked_weight(), explicit_qparams(module.qparams("weight")), module.bias)
        self.per_call, self.activation = DynamicQParams(module.x), module.activation
        self.dtype = torch.float32 if module.float_result is None else module.float_result.dtype

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(self.per_call(as_dtype(x, torch.float32)))
        return as_dtype(clamped(result, self.activation), self.dtype)


def dynamic_linear(module: QuantizedDynamicLinear) -> nn.Module:
    """Rewrite a linear layer whose input has no qparams before the call."""
    return DynamicLinear(module)


def weight_only_linear(module: QuantizedWeightOnlyLinear) -> nn.Module:
    """Rewrite a linear layer on floats."""
    rows, columns = module.weight_shape
    layer: Any = nn.Linear(columns, rows, bias=module.bias is not None, device="meta")
    layer._parameters["weight"] = None
    dtype = torch.float32 if module.float_result is None else module.float_result.dtype
    if module.bias is not None:
        layer.bias = nn.Parameter(module.bias.detach().to(dtype).clone())
    return WeightLayer(layer, nn.Linear, module.unpacked_weight(), weight_qparams(module.qparams("weight")), dtype)


def transposed_convolution(module: QuantizedConvTranspose) -> nn.Module:
    """Rewrite a transposed convolution; the module keeps the mirrored weight of the plain convolution."""
    groups, qparams = module.geometry.groups, module.qparams("weight")
    weight = mirrored_weight(module.unpacked_weight(), groups)
    names = ("stride", "padding", "output_padding", "dilation")
    sizes = {name: tuple(getattr(axis, name) for axis in module.axes) for name in names}
    along = explicit_qparams(_along_inputs(qparams, groups, len(weight)))
    return around(TransposedConvolution(weight, along, module.bias, sizes, groups), module)


def _along_inputs(qparams: QParams, groups: int, inputs: int) -> QParams:
    """Qparams [C_out] of the plain weight, as the transposed weight [C_in, C_out / groups, ...] has them.

    They came from one for each channel of a group, or, where a group has one channel, from one for each group.

    Raises:
        LoweringError: they are of neither kind.
    """
    if qparams.scheme.axis is None:
        return qparams
    scale, zero_point = (values.unflatten(0, (groups, -1)) for values in (qparams.scale, qparams.zero_point))
    if torch.equal(scale, scale[:1].expand_as(scale)) and torch.equal(zero_point, zero_point[:1].expand_as(zero_point)):
        return QParams(replace(qparams.scheme, axis=1), scale[0].clone(), zero_point[0].clone())
    if scale.shape[1] > 1:
        raise LoweringError("a transposed convolution has other scales in each group", got=list(scale.shape))
    along = (values.flatten().repeat_interleave(inputs // groups) for values in (scale, zero_point))
    return QParams(replace(qparams.scheme, axis=0), *along)


class Affine(nn.Module):
    """``x * factor + shift`` for each channel. Buffers: float32 [C]."""

    factor: Tensor
    shift: Tensor

    def __init__(self, factor: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("factor", factor)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        shape = [-1] + [1] * (x.dim() - 2)
        return x * self.factor.view(shape) + self.shift.view(shape)


def affine(module: Any) -> nn.Module:
    """Rewrite a batch norm alone. Its integers are signs, and its scales the sizes of the factors."""
    bias = module.bias
    factor = module.unpacked_weight().flatten().float() * module.weight_scale
    return around(Affine(factor, torch.zeros_like(factor) if bias is None else bias.detach().clone()), module)


def _table(module: Any, layer: Any, kind: type[nn.Module]) -> nn.Module:
    """Build a look-up from a layer of torch without a weight."""
    weight = unpack_halves(module.weight, module.columns) if module.bits == HALF_BITS else module.weight
    layer._parameters["weight"] = None
    return WeightLayer(layer, kind, weight, weight_qparams(module.qparams("weight")), module.float_result.dtype)


def embedding(module: QuantizedEmbedding) -> nn.Module:
    """Rewrite a look-up of rows."""
    return _table(module, nn.Embedding(1, module.columns, device="meta"), nn.Embedding)


def embedding_bag(module: QuantizedEmbeddingBag) -> nn.Module:
    """Rewrite a look-up of sums, means or maxima of rows."""
    layer = nn.EmbeddingBag(
        1, module.columns, mode=module.mode, include_last_offset=module.include_last_offset, device="meta"
    )
    layer.padding_idx = module.padding_idx  # the constructor compares it with a number of rows
    return _table(module, layer, nn.EmbeddingBag)


def _without_weight(layer: Any) -> Any:
    """Return a copy of a layer of torch without its weight and what belongs to it."""
    plain = copy.copy(layer)
    plain._parameters = {name: value for name, value in layer._parameters.items() if name != "weight"}
    plain._buffers, plain._modules = {}, {}
    plain.__class__ = layer.torch_class
    plain._parameters["weight"] = None
    return copy.deepcopy(plain)


def dequantized_layer(layer: DequantizedWeight) -> nn.Module:
    """Rewrite a layer of the reference form."""
    qparams = weight_qparams(QParams(layer.weight_scheme, layer.weight_scale, layer.weight_zero_point))
    return WeightLayer(_without_weight(layer), layer.torch_class, layer.weight, qparams, layer.weight_dtype)


def fake_quantized_layer(layer: FakeQuantizedWeight) -> nn.Module:
    """Rewrite a layer of the fake-quantized form: its weight is rounded to integers once."""
    q, qparams = rounded_integers(layer)
    return WeightLayer(_without_weight(layer), layer.torch_class, q, weight_qparams(qparams), layer.weight.dtype)


def rounded_integers(layer: FakeQuantizedWeight) -> tuple[Tensor, QParams]:
    """Return the integers that a layer's weight is rounded to, and their qparams."""
    rounding: Any = layer.weight_fake_quant
    rounding = getattr(rounding, "rounding", rounding)
    qparams: QParams = rounding.qparams()
    weight, scheme = layer.weight.detach(), qparams.scheme
    integers: Callable[[Tensor], Tensor] | None = getattr(rounding, "integers", None)
    q = to_integers(weight, qparams.scale, qparams.zero_point, scheme) if integers is None else integers(weight)
    return q, qparams
