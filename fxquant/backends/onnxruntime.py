"""ONNX Runtime on CPUs: which units of a QDQ graph its optimizer turns into integer kernels (1.32)."""

from __future__ import annotations

from fxquant.backends.base import Backend, register_backend
from fxquant.backends.qdq import (
    JOINS,
    MEANS,
    WORD,
    affine_of,
    blocked_weight,
    data_movement,
    integer_rule,
    names_of,
    on_floats,
    split_by_clamp,
    symmetric_weight,
    table_of_bytes,
)
from fxquant.graph.decompositions.self_gated import SELF_GATED
from fxquant.patterns.conv import CONV_PATTERNS
from fxquant.patterns.elementwise import ELEMENTWISE
from fxquant.patterns.linear import DYNAMIC_LINEAR, LINEAR_PATTERNS, MATMUL_PATTERNS, WEIGHT_ONLY_LINEAR
from fxquant.patterns.norm import NORMALIZE
from fxquant.patterns.pool import POOL
from fxquant.patterns.unary import UNARY

ACTIVATION = affine_of(WORD)
"""With more than 8 bits everything between quantize and dequantize is float."""

SUMS = tuple(pattern for pattern in ELEMENTWISE if pattern.name.split("_")[0] in ("add", "mul"))
FUNCTIONS = ("leaky_relu", "sigmoid", "hardsigmoid")
"""A hard sigmoid is written as a sum, whose quantize clamps it."""

ONNXRUNTIME = register_backend(
    Backend(
        "onnxruntime",
        rules=(
            # Its kernel adds no residual: the result of the convolution has qparams of its own, and the sum is a unit.
            # A convolution whose result is float runs in float.
            *split_by_clamp(integer_rule(CONV_PATTERNS, ACTIVATION, symmetric_weight)),
            *split_by_clamp(integer_rule(LINEAR_PATTERNS, ACTIVATION, symmetric_weight, float_result=True)),
            *split_by_clamp(integer_rule(MATMUL_PATTERNS, ACTIVATION, float_result=True)),
            on_floats(names_of(DYNAMIC_LINEAR), affine_of(8), symmetric_weight),
            on_floats(names_of(WEIGHT_ONLY_LINEAR), weight=blocked_weight),
            on_floats(("embedding",), weight=table_of_bytes),
            *split_by_clamp(integer_rule(SUMS, ACTIVATION)),
            integer_rule(JOINS, ACTIVATION),
            integer_rule([pattern for pattern in POOL if pattern.name in MEANS], ACTIVATION),
            on_floats(names_of(pattern for pattern in NORMALIZE if pattern.name != "layer_norm"), ACTIVATION),
            integer_rule([pattern for pattern in UNARY if pattern.name in FUNCTIONS], ACTIVATION),
            *data_movement(ACTIVATION),
        ),
        has_operators=False,
        bias="int32",
        # In float, SiLU between two layers costs more than either: its input is dequantized, its result quantized.
        composites=SELF_GATED,
    )
)
"""Not in the table, because it runs them in float: transposed convolutions, differences, layer norm, GELU, tanh,
weighted interpolation, and a clamp that the quantization range does not imply."""
