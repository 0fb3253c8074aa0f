"""The table of what runs on the CPU: int8 operators on plain uint8 and int8 tensors."""

from __future__ import annotations

from fxquant import nn as qnn
from fxquant.backends.accepts import (
    byte_activation,
    byte_table,
    byte_weight,
    int32_accumulators,
    int32_accumulators_transposed,
)
from fxquant.backends.base import AsCalled, Backend, BreakEven, KeepAs, Lower, LoweringRule, register_backend
from fxquant.nn import max_pool
from fxquant.nn.shape import interpolate as repeat
from fxquant.nn.table import clamp_of, function_of, prelu_of
from fxquant.nn.weight_only import weight_only
from fxquant.plan.precision import packed_cost

# A row names its patterns, what builds the operator, and which schemes of activations (`activation`), which schemes of
# weights (`weight`) and which layers (`layer`) it accepts, in this order. `float_result`: it can give float values.
# `takes`: positions of arguments that may be computed at run time.
RULES = (
    # Convolutions
    LoweringRule(
        ("conv_bn_add_act", "conv_bn_add", "conv_add_act", "conv_add"),
        qnn.QuantizedConv.from_unit,
        activation=byte_activation, weight=byte_weight, layer=int32_accumulators, float_result=True,
    ),
    LoweringRule(
        ("conv_bn_act", "conv_bn", "conv_act", "conv"),
        qnn.QuantizedConv.from_unit,
        activation=byte_activation, weight=byte_weight, layer=int32_accumulators, float_result=True,
    ),
    LoweringRule(
        ("conv_transpose_bn_act", "conv_transpose_bn", "conv_transpose_act", "conv_transpose"),
        qnn.QuantizedConvTranspose.from_unit,
        activation=byte_activation, weight=byte_weight, layer=int32_accumulators_transposed, float_result=True,
    ),
    LoweringRule(("bn_act", "bn", "instance_norm"), qnn.QuantizedBatchNorm.from_unit, byte_activation),
    # Matrix products and tables
    LoweringRule(
        ("linear_bn_act", "linear_bn", "linear_act", "linear"),
        qnn.QuantizedLinear.from_unit,
        activation=byte_activation, weight=byte_weight, layer=int32_accumulators, float_result=True,
    ),
    LoweringRule(
        ("dynamic_linear_act", "dynamic_linear", "per_token_linear_act", "per_token_linear"),
        AsCalled(qnn.QuantizedDynamicLinear.from_unit),
        activation=byte_activation, weight=byte_weight, layer=int32_accumulators,
    ),
    LoweringRule(
        ("recurrent", "dynamic_recurrent"),
        AsCalled(qnn.QuantizedRecurrent.from_unit),
        activation=byte_activation, weight=byte_weight, layer=int32_accumulators,
    ),
    LoweringRule(("weight_only_linear",), AsCalled(weight_only)),
    LoweringRule(
        ("matmul_act", "matmul_scaled", "matmul"), qnn.QuantizedMatmul.from_unit, byte_activation, float_result=True
    ),
    LoweringRule(("embedding",), AsCalled(qnn.QuantizedEmbedding.from_unit), weight=byte_table),
    LoweringRule(("embedding_bag",), AsCalled(qnn.QuantizedEmbeddingBag.from_unit), weight=byte_table),
    # Norms
    LoweringRule(
        ("attention_weights", "softmax"),
        AsCalled(qnn.QuantizedSoftmax.from_unit, accepts_quantized=True),
        byte_activation,
    ),
    LoweringRule(("layer_norm",), AsCalled(qnn.QuantizedLayerNorm.from_unit, accepts_quantized=True), byte_activation),
    # Sums, products and joins
    LoweringRule(("add_act", "add"), qnn.QuantizedAdd.from_unit, byte_activation),
    LoweringRule(("sub_act", "sub"), qnn.QuantizedSub.from_unit, byte_activation),
    LoweringRule(("mul_act", "mul"), qnn.QuantizedMul.from_unit, byte_activation),
    LoweringRule(("cat",), qnn.QuantizedCat.from_unit, byte_activation),
    LoweringRule(("stack",), qnn.QuantizedStack.from_unit, byte_activation),
    # Maxima and averages
    LoweringRule(("maximum", "minimum"), qnn.QuantizedMaximum.from_unit, byte_activation),
    LoweringRule(("max_values",), qnn.QuantizedMaxValues.from_unit, byte_activation),
    LoweringRule(("amax", "max"), Lower.KEEP, byte_activation),
    LoweringRule(("max_pool1d",), KeepAs(max_pool.max_pool1d), byte_activation),
    LoweringRule(("max_pool2d",), qnn.QuantizedMaxPool2d.from_unit, byte_activation),
    LoweringRule(("max_pool3d",), KeepAs(max_pool.max_pool3d), byte_activation),
    LoweringRule(("adaptive_max_pool1d",), KeepAs(max_pool.adaptive_max_pool1d), byte_activation),
    LoweringRule(("adaptive_max_pool2d",), KeepAs(max_pool.adaptive_max_pool2d), byte_activation),
    LoweringRule(("adaptive_max_pool3d",), KeepAs(max_pool.adaptive_max_pool3d), byte_activation),
    LoweringRule(("avg_pool1d",), qnn.QuantizedAvgPool1d.from_unit, byte_activation),
    LoweringRule(("avg_pool2d",), qnn.QuantizedAvgPool2d.from_unit, byte_activation),
    LoweringRule(("avg_pool3d",), qnn.QuantizedAvgPool3d.from_unit, byte_activation),
    LoweringRule(("adaptive_avg_pool1d",), qnn.QuantizedAdaptiveAvgPool1d.from_unit, byte_activation),
    LoweringRule(("adaptive_avg_pool2d",), qnn.QuantizedAdaptiveAvgPool2d.from_unit, byte_activation),
    LoweringRule(("adaptive_avg_pool3d",), qnn.QuantizedAdaptiveAvgPool3d.from_unit, byte_activation),
    LoweringRule(("mean",), qnn.QuantizedMean.from_unit, byte_activation),
    LoweringRule(("sum",), qnn.QuantizedSum.from_unit, byte_activation),
    # Functions of one tensor
    LoweringRule(("relu", "relu6", "hardtanh", "clamp", "clamp_off_zero"), clamp_of, byte_activation),
    LoweringRule(("prelu",), prelu_of, byte_activation),
    LoweringRule(("sigmoid", "hardsigmoid", "tanh"), AsCalled(function_of), byte_activation),
    LoweringRule(
        (
            "hardswish", "silu", "gelu", "mish", "elu", "celu", "selu", "leaky_relu", "rrelu", "softplus", "softsign",
            "tanhshrink", "softshrink", "hardshrink", "threshold", "logsigmoid", "neg", "abs", "square", "atan",
            "asinh", "erf", "erfc", "add_number", "sub_number", "number_sub", "mul_number", "div_number", "number_div",
            "pow_number",
        ),
        function_of, byte_activation,
    ),
    # Data movement
    LoweringRule(
        (
            "flatten", "reshape", "unflatten", "permute", "transpose", "t", "movedim", "transposed", "adjoint",
            "squeeze", "unsqueeze", "expand", "like", "repeat", "repeat_interleave", "roll", "flip", "rot90",
            "diagonal", "windows", "narrow", "select", "index_select", "gather", "chunk", "split", "unbind",
            "tensor_split", "getitem", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "pad_with_values",
            "pad_module",
        ),
        Lower.KEEP, byte_activation,
    ),
    LoweringRule(("interpolate",), KeepAs(repeat), byte_activation),
    LoweringRule(("interpolate_weighted",), qnn.QuantizedInterpolate.from_unit, byte_activation, takes=(1, 2)),
    LoweringRule(("pad", "pad_number"), qnn.QuantizedPad.from_unit, byte_activation, takes=(1,)),
    LoweringRule(("dropout", "identity", "contiguous", "same", "rescale"), Lower.ELIDE, byte_activation),
)  # fmt: skip

# Smaller layers that stand alone between floats stay float. A linear layer on one row has a limit of its own,
# `of_one_row`. The limits for each value count where `values` or more are read and given together.
BREAK_EVEN = BreakEven(
    of_one_row=3 << 15,  # multiply-accumulates of a linear layer on one row
    of_linear=2.0,  # multiply-accumulates of a linear layer for each value that it reads or gives
    of_convolution=13.0,  # the same, of a convolution
    values=1 << 14,  # from so many values on, read and given, `of_linear` and `of_convolution` count
)
"""Measured on one thread by ``benchmarks/int8_units.py --layers``. Between float operators a layer is a program of its
own between two pieces of Python, which takes up to 5 µs more than a call of a small float layer."""

CPU = register_backend(Backend("cpu", RULES, break_even=BREAK_EVEN, cost=packed_cost))
