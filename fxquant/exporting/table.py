"""The explicit form of each class of ``fxquant.nn``: a table of functions that build it from the module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant import nn as qnn
from fxquant.errors import DuplicateNameError
from fxquant.exporting.qparams import DynamicQParams, ExplicitQParams, as_dtype, explicit_qparams
from fxquant.exporting.recurrent import Recurrent
from fxquant.exporting.units import ExplicitUnit
from fxquant.exporting.weights import (
    affine,
    convolution,
    dequantized_layer,
    dynamic_linear,
    embedding,
    embedding_bag,
    fake_quantized_layer,
    linear,
    transposed_convolution,
    weight_only_linear,
)
from fxquant.fake_quantize.converted import DynamicFakeQuantize, StaticFakeQuantize
from fxquant.graph.recurrent import RECURRENT
from fxquant.nn.weight_forms import LAYERS

Build = Callable[[Any], nn.Module]
"""Makes the explicit form of a module. It may not fold, reorder, or choose qparams."""


def y_of(module: Any) -> ExplicitQParams | None:
    """Qparams of the result; None: it is float."""
    return explicit_qparams(module.qparams("y")) if "y" in module._schemes else None


def unit(operator: Callable[..., Any], module: Any, *roles: str | None) -> ExplicitUnit:
    """Build what runs an operator between the qparams of a module.

    Args:
        operator: Of float values.
        module: A ``QuantizedModule``.
        roles: Of its inputs; None, or a role without qparams: that one is float.
    """
    inputs = [explicit_qparams(module.qparams(role)) if role in module._schemes else None for role in roles]
    result = module.float_result
    dtype = torch.float32 if result is None else result.dtype
    return ExplicitUnit(operator, inputs, y_of(module), getattr(module, "activation", None), dtype)


class Quantize(nn.Module):
    """Quantizes by the qparams of a border."""

    def __init__(self, qparams: ExplicitQParams) -> None:
        super().__init__()
        self.qparams = qparams

    def forward(self, x: Tensor) -> Tensor:
        return self.qparams.quantize(x)


class FakeQuantize(Quantize):
    """Quantizes and dequantizes; the dtype stays."""

    def forward(self, x: Tensor) -> Tensor:
        return as_dtype(self.qparams.dequantize(self.qparams.quantize(x)), x.dtype)


def quantize(module: qnn.Quantize) -> nn.Module:
    return Quantize(explicit_qparams(module.qparams("y")))


def as_it_is(x: Tensor) -> Tensor:
    """Give back what was dequantized."""
    return x


def scaled_product(a: Tensor, b: Tensor, factor: float) -> Tensor:
    """Multiply matrices, and the product with a number."""
    product = torch.matmul(a, b)
    return product if factor == 1 else product * factor


def join(function: Callable[..., Tensor], dim: int, *tensors: Tensor) -> Tensor:
    """Call what takes its tensors as a list."""
    return function(tensors, dim)


def reduced(function: Callable[..., Tensor], dim: list[int], keepdim: bool, x: Tensor) -> Tensor:
    """Call a mean or a sum; no dimensions stand for all."""
    return function(x, dim or list(range(x.dim())), keepdim)


def softmax(dim: int, safe: bool, x: Tensor, *known: Any, **also_known: Any) -> Tensor:
    """The arguments after the tensor are those that the module was made for."""
    return torch._safe_softmax(x, dim) if safe else F.softmax(x, dim)


def padded(widths: list[int] | None, value: float, x: Tensor, computed: Any = None) -> Tensor:
    """Pad with a number, by widths that are known or come with the call."""
    return F.pad(x, list(computed or widths or ()), value=value)


def resampled(module: Any, x: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Interpolate to a size that is known or comes with the call."""
    own, own_scale, mode, (corners, recompute, antialias) = module
    if size is None and scale_factor is None:
        size, scale_factor = own, own_scale
    return F.interpolate(x, size, scale_factor, mode, corners, recompute, antialias)


def clamp_or_function(module: Any) -> Callable[[Tensor], Tensor]:
    """Read what a table of answers is filled by."""
    function: Callable[[Tensor], Tensor] = module.function
    return function


class LayerNorm(nn.Module):
    """The float operator. Buffers: ``weight`` and ``bias``, float32 of the normalized shape."""

    weight: Tensor
    bias: Tensor

    def __init__(self, module: qnn.QuantizedLayerNorm) -> None:
        super().__init__()
        self.normalized_shape, self.eps = module.normalized_shape, module.eps
        self.register_buffer("weight", module.weight.detach().reshape(self.normalized_shape).clone())
        self.register_buffer("bias", module.bias.detach().reshape(self.normalized_shape).clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(
            x, self.normalized_shape, as_dtype(self.weight, x.dtype), as_dtype(self.bias, x.dtype), self.eps
        )


class PReLU(nn.Module):
    """The float operator. Buffer: ``slope``, float32 [C]."""

    slope: Tensor

    def __init__(self, module: qnn.QuantizedPReLU) -> None:
        super().__init__()
        self.register_buffer("slope", module.slope.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.slope)


def max_pool2d(module: qnn.QuantizedMaxPool2d) -> nn.Module:
    """Of float values: ``explicit`` dequantizes before it and quantizes after it, by the qparams of its input."""
    kernel_size, stride, padding, dilation, ceil_mode = module.arguments
    return nn.MaxPool2d(kernel_size, stride, padding, dilation, ceil_mode=ceil_mode)


class MaxValues(nn.Module):
    """The largest or smallest value along a dimension; of float values, as :func:`max_pool2d`."""

    def __init__(self, module: qnn.QuantizedMaxValues) -> None:
        super().__init__()
        self.dim, self.keepdim, self.largest = module.dim, module.keepdim, module.largest

    def forward(self, x: Tensor) -> Tensor:
        return (torch.amax if self.largest else torch.amin)(x, self.dim, self.keepdim)


def avg_pool1d(module: qnn.QuantizedAvgPool1d) -> nn.Module:
    (_, kernel_size), (_, stride), (_, padding), ceil_mode, count_include_pad, _ = module.arguments
    return unit(nn.AvgPool1d(kernel_size, stride, padding, ceil_mode, count_include_pad), module, "x")


def avg_pool2d(module: qnn.QuantizedAvgPool2d) -> nn.Module:
    return unit(nn.AvgPool2d(*module.arguments), module, "x")


def avg_pool3d(module: qnn.QuantizedAvgPool3d) -> nn.Module:
    sizes: Any = (tuple(size) for size in (module.kernel_size, module.stride, module.padding))
    settings = (module.ceil_mode, module.count_include_pad, module.divisor_override)
    pool: Callable[..., nn.Module] = nn.AvgPool3d
    return unit(pool(*sizes, *settings), module, "x")


def adaptive_avg_pool1d(module: qnn.QuantizedAdaptiveAvgPool1d) -> nn.Module:
    return unit(nn.AdaptiveAvgPool1d(module.output_size[1]), module, "x")


def maximum(module: qnn.QuantizedMaximum) -> nn.Module:
    return unit(torch.maximum if module.largest else torch.minimum, module, "a", "b")


def interpolate(module: qnn.QuantizedInterpolate) -> nn.Module:
    settings = (module.size, module.scale_factor, module.mode, module.how)
    return unit(partial(resampled, settings), module, "x")


EXPLICIT: dict[type[nn.Module], Build] = {
    qnn.Quantize: quantize,
    qnn.Dequantize: lambda m: unit(as_it_is, m, "x"),
    qnn.Requantize: lambda m: unit(as_it_is, m, "x"),
    qnn.QuantizedConv: convolution,
    qnn.QuantizedConvTranspose: transposed_convolution,
    qnn.QuantizedBatchNorm: affine,
    qnn.QuantizedLinear: linear,
    qnn.QuantizedDynamicLinear: dynamic_linear,
    qnn.QuantizedRecurrent: Recurrent.of_int8,
    qnn.QuantizedWeightOnlyLinear: weight_only_linear,
    qnn.QuantizedMatmul: lambda m: unit(partial(scaled_product, factor=m.factor), m, "a", "b"),
    qnn.QuantizedAdd: lambda m: unit(torch.add, m, "a", "b"),
    qnn.QuantizedSub: lambda m: unit(torch.sub, m, "a", "b"),
    qnn.QuantizedMul: lambda m: unit(torch.mul, m, "a", "b"),
    qnn.QuantizedMaximum: maximum,
    qnn.QuantizedCat: lambda m: unit(partial(join, torch.cat, m.dim), m, *m.roles),
    qnn.QuantizedStack: lambda m: unit(partial(join, torch.stack, m.dim), m, *m.roles),
    qnn.QuantizedPReLU: lambda m: unit(PReLU(m), m, "x"),
    qnn.QuantizedPad: lambda m: unit(partial(padded, m.widths, m.value), m, "x"),
    qnn.QuantizedInterpolate: interpolate,
    qnn.QuantizedMaxPool2d: max_pool2d,
    qnn.QuantizedMaxValues: MaxValues,
    qnn.QuantizedAvgPool1d: avg_pool1d,
    qnn.QuantizedAvgPool2d: avg_pool2d,
    qnn.QuantizedAvgPool3d: avg_pool3d,
    qnn.QuantizedAdaptiveAvgPool1d: adaptive_avg_pool1d,
    qnn.QuantizedAdaptiveAvgPool2d: lambda m: unit(nn.AdaptiveAvgPool2d(m.output_size), m, "x"),
    qnn.QuantizedAdaptiveAvgPool3d: lambda m: unit(nn.AdaptiveAvgPool3d(m.output_size), m, "x"),
    qnn.QuantizedMean: lambda m: unit(partial(reduced, torch.mean, m.dim, m.keepdim), m, "x"),
    qnn.QuantizedSum: lambda m: unit(partial(reduced, torch.sum, m.dim, m.keepdim), m, "x"),
    qnn.QuantizedSoftmax: lambda m: unit(partial(softmax, m.dim, m.safe), m, "x"),
    qnn.QuantizedLayerNorm: lambda m: unit(LayerNorm(m), m, "x"),
    qnn.QuantizedTable: lambda m: unit(clamp_or_function(m), m, "x"),
    qnn.QuantizedFunction: lambda m: unit(clamp_or_function(m), m, None),
    qnn.QuantizedEmbedding: embedding,
    qnn.QuantizedEmbeddingBag: embedding_bag,
    StaticFakeQuantize: lambda m: FakeQuantize(explicit_qparams(m.qparams())),
    DynamicFakeQuantize: lambda m: DynamicQParams(m.policy),
    **{fake_quantized: fake_quantized_layer for fake_quantized, _ in LAYERS.values()},
    **{dequantized: dequantized_layer for _, dequantized in LAYERS.values()},
    **{form: Recurrent.of_simulation for kind, pair in LAYERS.items() if kind in RECURRENT for form in pair},
}
"""Class -> what builds the explicit form of a module of it."""

ON_FLOATS = {qnn.QuantizedMaxPool2d, qnn.QuantizedMaxValues}
"""Classes without qparams, which choose values: their explicit form is a float operator."""


def register_explicit(kind: type[nn.Module], build: Build) -> None:
    """Give a class of your own an explicit form: a module that a back end or a pattern of yours puts into int8 models.

    Args:
        kind: The class.
        build: Called with the module; what it returns is called in its place, with quantized values where the module
            gets quantized values, and gives what the module gives. ``torch.ops.quantized_decomposed`` has the
            operators to use.

    Raises:
        DuplicateNameError: the class has an explicit form already.
    """
    if kind in EXPLICIT:
        raise DuplicateNameError(
            "this class has an explicit form already",
            got=f"{kind.__module__}.{kind.__qualname__}",
            expected="a class without one",
        )
    EXPLICIT[kind] = build
