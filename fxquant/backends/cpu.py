"""The CPU: int8 operators on plain uint8 and int8 tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from fxquant.backends.base import (
    SIGNED_WEIGHTS,
    AsCalled,
    Backend,
    BreakEven,
    KeepAs,
    Lower,
    LoweringRule,
    register_backend,
)
from fxquant.graph.query import nodes_in, value_of
from fxquant.nn import (
    ElementFunction,
    QuantizedAdaptiveAvgPool1d,
    QuantizedAdaptiveAvgPool2d,
    QuantizedAdaptiveAvgPool3d,
    QuantizedAdd,
    QuantizedAvgPool1d,
    QuantizedAvgPool2d,
    QuantizedAvgPool3d,
    QuantizedBatchNorm,
    QuantizedCat,
    QuantizedConv,
    QuantizedConvTranspose,
    QuantizedDynamicLinear,
    QuantizedEmbedding,
    QuantizedEmbeddingBag,
    QuantizedFunction,
    QuantizedInterpolate,
    QuantizedLayerNorm,
    QuantizedLinear,
    QuantizedMatmul,
    QuantizedMaximum,
    QuantizedMaxPool2d,
    QuantizedMaxValues,
    QuantizedMean,
    QuantizedMul,
    QuantizedPad,
    QuantizedPReLU,
    QuantizedSoftmax,
    QuantizedStack,
    QuantizedSub,
    QuantizedSum,
    QuantizedTable,
    max_pool,
)
from fxquant.nn.fake_quantize import with_dequantized_weight
from fxquant.nn.shape import interpolate as repeat
from fxquant.nn.weight import LARGEST_FAN_IN
from fxquant.patterns.batch_norm import BATCH_NORM
from fxquant.patterns.conv import CONV_PATTERNS, CONV_TRANSPOSE, RESIDUAL_PATTERNS
from fxquant.patterns.elementwise import ACTIVATION
from fxquant.patterns.linear import DYNAMIC_LINEAR, LINEAR_PATTERNS, MATMUL_PATTERNS, WEIGHT_ONLY_LINEAR
from fxquant.patterns.norm import softmax_arguments
from fxquant.patterns.pattern import Pattern, UnitView
from fxquant.patterns.pool import EXTREMA, MAXIMA
from fxquant.patterns.shape import DATA_MOVEMENT, NEAREST, NOTHING, NUMBER_PADS, WEIGHTED, ZERO_PADS, padding_value
from fxquant.patterns.unary import BOUNDED, PRELU, RESCALE, UNARY, factor_of
from fxquant.plan.spec import QScheme


def byte_activation(scheme: QScheme) -> str | None:
    """Activations are stored in one byte, on one grid for the whole tensor."""
    if scheme.bits > 8:
        return f"{scheme.bits} bit activations do not fit a byte"
    if scheme.axis is not None or scheme.float_qparams:
        return f"activations need one integer grid for the whole tensor, not {scheme}"
    return None


def byte_weight(scheme: QScheme) -> str | None:
    """Weights are stored as int8, symmetric, on one grid or one for each output channel."""
    if scheme.bits > 8:
        return f"{scheme.bits} bit weights do not fit a byte"
    if not scheme.signed or not scheme.symmetric:
        qscheme = "per_tensor_symmetric" if scheme.axis is None else "per_channel_symmetric"
        words = ("" if scheme.signed else "dtype=torch.int8", "" if scheme.symmetric else f"qscheme=torch.{qscheme}")
        return f"{SIGNED_WEIGHTS} ({', '.join(filter(None, words))}), not {scheme}"
    if scheme.group_size is not None:
        return "weights with one scale per group have no integer operator; backend='reference' simulates them"
    return None


def byte_table(scheme: QScheme) -> str | None:
    """Rows of tables are stored in bytes, or, of at most 4 bits, in halves of them, each row on a grid of its own."""
    if scheme.bits > 8:
        return f"{scheme.bits} bit tables do not fit bytes"
    if scheme.group_size is not None:
        return "tables with one scale per group have no integer operator; backend='reference' simulates them"
    return None


def int32_sums(layer: nn.Module) -> str | None:
    """Sums of products of bytes are kept in int32, which must never overflow."""
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)  # patterns with a weight name a layer that has one
    return int32_sums_of(weight[0].numel() if weight.numel() else 0)


def int32_sums_of(products: int) -> str | None:
    if not products:
        return "its weight is empty"
    if products > LARGEST_FAN_IN:
        return f"{products} products per output can overflow an int32 sum; {LARGEST_FAN_IN} cannot"
    return None


def int32_sums_transposed(layer: nn.Module) -> str | None:
    """The same for a weight [C_in, C_out / groups, ...]: a sum runs over the input channels of a group."""
    conv: Any = layer
    weight: torch.Tensor = conv.weight
    return int32_sums_of(weight[: len(weight) // conv.groups, 0].numel() if weight.numel() else 0)


def sums_with_residual(layer: nn.Module) -> str | None:
    """The operator for convolutions in three dimensions adds no residual."""
    if isinstance(layer, nn.Conv3d):
        return "a three-dimensional convolution takes no residual; the sum is a unit of its own"
    return int32_sums(layer)


def conv(unit: UnitView) -> nn.Module:
    return QuantizedConv(
        unit.modules["conv"],
        x=unit.qparams["x"],
        weight=unit.qparams["weight"],
        y=unit.qparams.get("y"),
        activation=unit.activation,
        residual=unit.qparams.get("residual"),
    )


def conv_transpose(unit: UnitView) -> nn.Module:
    return QuantizedConvTranspose(
        unit.modules["conv"],
        x=unit.qparams["x"],
        weight=unit.qparams["weight"],
        y=unit.qparams.get("y"),
        activation=unit.activation,
    )


def batch_norm(unit: UnitView) -> nn.Module:
    value, qparams = value_of(unit.nodes["bn"]), {role: unit.qparams[role] for role in ("x", "y")}
    dims = None if value is None else len(value.shape)
    return QuantizedBatchNorm(unit.modules["bn"], **qparams, activation=unit.activation, dims=dims)


def linear(unit: UnitView) -> nn.Module:
    return QuantizedLinear(
        unit.modules["linear"],
        x=unit.qparams["x"],
        weight=unit.qparams["weight"],
        y=unit.qparams.get("y"),
        activation=unit.activation,
    )


def dynamic_linear(unit: UnitView) -> nn.Module:
    return QuantizedDynamicLinear(unit.modules["linear"], x=unit.per_call["x"], weight=unit.qparams["weight"])


def weight_only_linear(unit: UnitView) -> nn.Module:
    """The float layer, which makes its weight anew from integers in each call."""
    return with_dequantized_weight(unit.modules["linear"], unit.qparams["weight"])


def embedding(unit: UnitView) -> nn.Module:
    return QuantizedEmbedding(unit.modules["embedding"], unit.qparams["weight"])


def embedding_bag(unit: UnitView) -> nn.Module:
    return QuantizedEmbeddingBag(unit.modules["embedding"], unit.qparams["weight"])


def matmul(unit: UnitView) -> nn.Module:
    factor = factor_of(unit.nodes["scaled"]) if "scaled" in unit.nodes else 1.0
    return QuantizedMatmul(unit.qparams["a"], unit.qparams["b"], unit.qparams.get("y"), unit.activation, factor)


def sum_or_product(module: Callable[..., nn.Module], unit: UnitView) -> nn.Module:
    return module(unit.qparams["a"], unit.qparams["b"], unit.qparams["y"], unit.activation)


def join(module: Callable[..., nn.Module], unit: UnitView) -> nn.Module:
    node = unit.nodes["cat" if "cat" in unit.nodes else "stack"]
    _, dim = _arguments(node, ("tensors", None), ("dim", 0))
    return module([unit.qparams[name] for name in unit.inputs], unit.qparams["y"], dim)


def max_pool2d(unit: UnitView) -> nn.Module:
    names = (("kernel_size", None), ("stride", None), ("padding", 0), ("dilation", 1), ("ceil_mode", False))
    _, *arguments = _arguments(unit.nodes["pool"], ("input", None), *names)
    return QuantizedMaxPool2d(*arguments)


def max_values(unit: UnitView) -> nn.Module:
    node = unit.nodes["pick"]
    _, dim, keepdim = _arguments(node, ("input", None), ("dim", None), ("keepdim", False))
    return QuantizedMaxValues(dim, keepdim, largest=node.target in (torch.max, "max"))


def maximum(unit: UnitView) -> nn.Module:
    return QuantizedMaximum(unit.qparams["a"], unit.qparams["b"], unit.qparams["y"])


def minimum(unit: UnitView) -> nn.Module:
    return QuantizedMaximum(unit.qparams["a"], unit.qparams["b"], unit.qparams["y"], largest=False)


def avg_pool(unit: UnitView) -> nn.Module:
    names = (
        ("kernel_size", None),
        ("stride", None),
        ("padding", 0),
        ("ceil_mode", False),
        ("count_include_pad", True),
        ("divisor_override", None),
    )
    node = unit.nodes["pool"]
    _, *arguments = _arguments(node, ("input", None), *names)
    if node.target is F.avg_pool1d:  # it takes no divisor of its own
        return QuantizedAvgPool1d(*arguments[:-1], x=unit.qparams["x"], y=unit.qparams["y"])
    module = QuantizedAvgPool2d if node.target is F.avg_pool2d else QuantizedAvgPool3d
    return module(*arguments, x=unit.qparams["x"], y=unit.qparams["y"])


ADAPTIVE_AVERAGES: dict[Any, Callable[..., nn.Module]] = {
    F.adaptive_avg_pool1d: QuantizedAdaptiveAvgPool1d,
    F.adaptive_avg_pool2d: QuantizedAdaptiveAvgPool2d,
    F.adaptive_avg_pool3d: QuantizedAdaptiveAvgPool3d,
}


def adaptive_avg_pool(unit: UnitView) -> nn.Module:
    node = unit.nodes["pool"]
    _, size = _arguments(node, ("input", None), ("output_size", None))
    return ADAPTIVE_AVERAGES[node.target](size, x=unit.qparams["x"], y=unit.qparams["y"])


def mean_or_sum(module: Callable[..., nn.Module], unit: UnitView) -> nn.Module:
    _, dim, keepdim = _arguments(unit.nodes["mean"], ("input", None), ("dim", None), ("keepdim", False))
    return module(dim, keepdim, x=unit.qparams["x"], y=unit.qparams["y"])


def clamp(unit: UnitView) -> nn.Module:
    """A clamp alone is a table filled from the clamp itself: exact, like every function of one byte."""
    assert unit.activation is not None  # the patterns that come here are clamps
    return QuantizedTable(unit.activation, unit.qparams["x"], unit.qparams["y"])


def function(unit: UnitView) -> nn.Module:
    """A function of one tensor, with the numbers that it is called with."""
    node, x = unit.nodes["function"], unit.nodes["x"]
    if (slope := _constant_slope(unit)) is not None:
        computed = ElementFunction(F.leaky_relu, after=(slope,))
    else:
        at = node.args.index(x)
        assert callable(node.target)  # the normalize pass left no method
        computed = ElementFunction(node.target, node.args[:at], node.args[at + 1 :], node.kwargs)
    x_qparams, y = unit.qparams.get("x"), unit.qparams["y"]
    return QuantizedFunction(computed, y) if x_qparams is None else QuantizedTable(computed, x_qparams, y)


def prelu(unit: UnitView) -> nn.Module:
    slopes = unit.modules["function"].weight.detach()
    x, y = unit.qparams["x"], unit.qparams["y"]
    if slopes.numel() == 1:
        return QuantizedTable(ElementFunction(F.leaky_relu, after=(slopes.item(),)), x, y)
    return QuantizedPReLU(slopes, x, y)


def softmax(unit: UnitView) -> nn.Module:
    node = unit.nodes["softmax"]
    safe = node.target is torch._safe_softmax
    return QuantizedSoftmax(softmax_arguments(node)[0], unit.qparams["y"], unit.qparams.get("x"), safe)


def layer_norm(unit: UnitView) -> nn.Module:
    return QuantizedLayerNorm(unit.modules["norm"], unit.qparams["y"], unit.qparams.get("x"))


def interpolate(unit: UnitView) -> nn.Module:
    arguments: Any = unit.nodes["interpolation"].args
    _, size, scale_factor, *how = arguments
    sizes: tuple[Any, Any] = (None, None) if nodes_in((size, scale_factor)) else (size, scale_factor)
    return QuantizedInterpolate(*sizes, *how, x=unit.qparams["x"], y=unit.qparams["y"])


def _constant_slope(unit: UnitView) -> float | None:
    """The slope below 0 of what is a leaky ReLU by another name; None for other functions."""
    module, node = unit.modules.get("function"), unit.nodes["function"]
    if isinstance(module, nn.RReLU):
        return (module.lower + module.upper) / 2
    if node.target in (F.rrelu, torch.rrelu):
        _, lower, upper = _arguments(node, ("input", None), ("lower", 1 / 8), ("upper", 1 / 3))
        return (lower + upper) / 2
    return None


def pad(unit: UnitView) -> nn.Module:
    module = unit.modules.get("pad")
    widths: Any = unit.nodes["pad"].args[1] if module is None else module.padding
    known = isinstance(widths, (tuple, list)) and all(isinstance(width, int) for width in widths)
    value = float(padding_value(unit.nodes["pad"]))
    return QuantizedPad(widths if known else None, unit.qparams["x"], unit.qparams["y"], value)


def names_of(patterns: tuple[Pattern, ...]) -> tuple[str, ...]:
    return tuple(pattern.name for pattern in patterns)


def _arguments(node: Node, *names: tuple[str, Any]) -> tuple[Any, ...]:
    """A node's arguments in the order of ``names``, each a name and its default."""
    return tuple(
        node.args[i] if i < len(node.args) else node.kwargs.get(name, default)
        for i, (name, default) in enumerate(names)
    )


CPU_BREAK_EVEN = BreakEven(of_one_row=3 << 15, of_linear=2.0, of_convolution=13.0, values=1 << 14)
"""Measured on one thread by ``benchmarks/int8_units.py --layers``: a call takes 15 µs where a float layer takes 6."""

CPU = register_backend(
    Backend(
        "cpu",
        rules=(
            LoweringRule(
                names_of(RESIDUAL_PATTERNS), conv, byte_activation, byte_weight, sums_with_residual, float_result=True
            ),
            LoweringRule(names_of(CONV_PATTERNS), conv, byte_activation, byte_weight, int32_sums, float_result=True),
            LoweringRule(
                names_of(CONV_TRANSPOSE),
                conv_transpose,
                byte_activation,
                byte_weight,
                int32_sums_transposed,
                float_result=True,
            ),
            LoweringRule(names_of(BATCH_NORM), batch_norm, byte_activation),
            LoweringRule(
                names_of(LINEAR_PATTERNS), linear, byte_activation, byte_weight, int32_sums, float_result=True
            ),
            LoweringRule(names_of(DYNAMIC_LINEAR), AsCalled(dynamic_linear), byte_activation, byte_weight, int32_sums),
            LoweringRule(names_of(WEIGHT_ONLY_LINEAR), AsCalled(weight_only_linear)),
            LoweringRule(("embedding",), AsCalled(embedding), weight=byte_table),
            LoweringRule(("embedding_bag",), AsCalled(embedding_bag), weight=byte_table),
            LoweringRule(("attention_weights", "softmax"), AsCalled(softmax, or_stored=True), byte_activation),
            LoweringRule(("layer_norm",), AsCalled(layer_norm, or_stored=True), byte_activation),
            LoweringRule(names_of(MATMUL_PATTERNS), matmul, byte_activation, float_result=True),
            LoweringRule(("add_act", "add"), partial(sum_or_product, QuantizedAdd), byte_activation),
            LoweringRule(("sub_act", "sub"), partial(sum_or_product, QuantizedSub), byte_activation),
            LoweringRule(("mul_act", "mul"), partial(sum_or_product, QuantizedMul), byte_activation),
            LoweringRule(("cat",), partial(join, QuantizedCat), byte_activation),
            LoweringRule(("stack",), partial(join, QuantizedStack), byte_activation),
            LoweringRule(("maximum",), maximum, byte_activation),
            LoweringRule(("minimum",), minimum, byte_activation),
            LoweringRule(("max_values",), max_values, byte_activation),
            LoweringRule(names_of(EXTREMA), Lower.KEEP, byte_activation),
            *(LoweringRule((p.name,), KeepAs(getattr(max_pool, p.name)), byte_activation) for p in MAXIMA),
            LoweringRule(("max_pool2d",), max_pool2d, byte_activation),
            LoweringRule(("avg_pool1d", "avg_pool2d", "avg_pool3d"), avg_pool, byte_activation),
            LoweringRule(tuple(f.__name__ for f in ADAPTIVE_AVERAGES), adaptive_avg_pool, byte_activation),
            LoweringRule(("mean",), partial(mean_or_sum, QuantizedMean), byte_activation),
            LoweringRule(("sum",), partial(mean_or_sum, QuantizedSum), byte_activation),
            LoweringRule(names_of(ACTIVATION), clamp, byte_activation),
            LoweringRule(names_of(PRELU), prelu, byte_activation),
            LoweringRule(names_of(BOUNDED), AsCalled(function), byte_activation),
            LoweringRule(names_of(UNARY), function, byte_activation),
            LoweringRule(names_of(DATA_MOVEMENT), Lower.KEEP, byte_activation),
            LoweringRule(names_of(NEAREST), KeepAs(repeat), byte_activation),
            LoweringRule(names_of(WEIGHTED), interpolate, byte_activation, takes=(1, 2)),
            LoweringRule(names_of(ZERO_PADS + NUMBER_PADS), pad, byte_activation, takes=(1,)),
            LoweringRule(names_of(NOTHING + RESCALE), Lower.ELIDE, byte_activation),
        ),
        break_even=CPU_BREAK_EVEN,
    )
)
