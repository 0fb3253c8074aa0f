"""OpenVINO on CPUs: which units of a QDQ graph it computes in int8 (2026.4)."""

from __future__ import annotations

from fxquant.backends.base import Backend, register_backend
from fxquant.backends.qdq import (
    JOINS,
    MEANS,
    affine_if_unsigned,
    blocked_weight,
    data_movement,
    integer_rule,
    names_of,
    on_floats,
    symmetric_weight,
    table_of_bytes,
    zero_point_zero,
)
from fxquant.patterns.conv import CONV_PATTERNS, RESIDUAL_PATTERNS
from fxquant.patterns.linear import LINEAR_PATTERNS, MATMUL_PATTERNS, WEIGHT_ONLY_LINEAR
from fxquant.patterns.pool import POOL

ACTIVATION = affine_if_unsigned


OPENVINO = register_backend(
    Backend(
        "openvino",
        rules=(
            # Sums and functions after a layer are fused into it, past any quantize that stands between: so none does.
            integer_rule((*RESIDUAL_PATTERNS, *CONV_PATTERNS), ACTIVATION, symmetric_weight, float_result=True),
            integer_rule(LINEAR_PATTERNS, ACTIVATION, symmetric_weight, float_result=True),
            integer_rule(MATMUL_PATTERNS, zero_point_zero, float_result=True),
            on_floats(names_of(WEIGHT_ONLY_LINEAR), weight=blocked_weight),
            on_floats(("embedding",), weight=table_of_bytes),
            integer_rule(JOINS, ACTIVATION),
            integer_rule([pattern for pattern in POOL if pattern.name in MEANS], ACTIVATION),
            *data_movement(ACTIVATION),
        ),
        has_operators=False,
        bias="int32",
        joins_on_one_qparams=True,
    )
)
"""Not in the table, because it runs them in float: sums and products alone, functions of one tensor, softmax, layer
norm, dynamic and transposed layers."""
