"""TensorRT: what its documents say that explicit quantization takes. It cannot be run on CPUs, so nothing is measured.

Source:
    NVIDIA TensorRT documentation, "Working with Quantized Types", explicit quantization; github.com/NVIDIA/TensorRT
    issue 1992 for residuals.
"""

from __future__ import annotations

import torch

from fxquant.backends.base import Backend, register_backend
from fxquant.backends.qdq import (
    AVERAGE_POOLS,
    JOINS,
    blocked_weight,
    data_movement,
    integer_rule,
    names_of,
    on_floats,
    symmetric_weight,
    zero_point_zero,
)
from fxquant.observers.defaults import DEFAULT_QCONFIGS, default_per_channel_weight_observer
from fxquant.observers.histogram import HistogramObserver
from fxquant.patterns.conv import CONV_PATTERNS, RESIDUAL_PATTERNS
from fxquant.patterns.linear import LINEAR_PATTERNS, MATMUL_PATTERNS, WEIGHT_ONLY_LINEAR
from fxquant.patterns.pool import POOL
from fxquant.plan.qconfig import QConfig
from fxquant.plan.spec import QScheme

FULL_WIDTH = 8


def int8(scheme: QScheme) -> str | None:
    """Activations and weights of multiplications have all 8 bits: nothing clamps integers between two nodes."""
    if scheme.bits != FULL_WIDTH or scheme.limits is not None:
        return f"it takes int8 with all of its values, not {scheme}"
    return zero_point_zero(scheme)


TENSORRT = register_backend(
    Backend(
        "tensorrt",
        rules=(
            # The residual is quantized on its way to the sum; the result of the convolution is not.
            integer_rule((*RESIDUAL_PATTERNS, *CONV_PATTERNS), int8, symmetric_weight, float_result=True),
            integer_rule(LINEAR_PATTERNS, int8, symmetric_weight, float_result=True),
            integer_rule(MATMUL_PATTERNS, int8, float_result=True),
            on_floats(names_of(WEIGHT_ONLY_LINEAR), weight=blocked_weight),
            integer_rule(JOINS, int8),
            integer_rule([pattern for pattern in POOL if pattern.name in AVERAGE_POOLS], int8),
            *data_movement(int8),
        ),
        has_operators=False,
        joins_on_one_qparams=True,
    )
)
"""ReLU and SiLU after a layer are fused into it, and other functions run in float. Biases stay float."""

DEFAULT_QCONFIGS.add(
    "tensorrt",
    QConfig(
        activation=HistogramObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric"),
        weight=default_per_channel_weight_observer,
        correct_bias=True,
    ),
)
