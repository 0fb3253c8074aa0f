"""OpenVINO on CPUs: which units of a QDQ graph it computes in int8 (2026.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import nn
from torch.fx import Node

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
from fxquant.graph.affine import BATCH_NORMS
from fxquant.graph.query import module_of
from fxquant.patterns.conv import CONV_PATTERNS
from fxquant.patterns.elementwise import ELEMENTWISE
from fxquant.patterns.linear import LINEAR_PATTERNS, MATMUL_PATTERNS, WEIGHT_ONLY_LINEAR
from fxquant.patterns.pool import POOL

ACTIVATION = affine_if_unsigned
SUMS = tuple(pattern for pattern in ELEMENTWISE if pattern.name in ("add", "add_act"))
PRODUCTS = tuple(pattern for pattern in ELEMENTWISE if pattern.name in ("mul", "mul_act"))


def adds_to_convolution(captures: Mapping[str, Node]) -> str | None:
    """Tell why a sum runs in float: neither summand is what a convolution gives, batch norm included."""
    if any(_is_of_convolution(captures[name]) for name in ("a", "b")):
        return None
    return "sums run in float unless they are behind a convolution, which adds them then"


def scales_convolution(captures: Mapping[str, Node]) -> str | None:
    """Tell why a product runs on floats: neither factor is a function of what a convolution gives."""
    for node in (captures["a"], captures["b"]):
        sources = node.all_input_nodes
        if _is_of_convolution(node) or (len(sources) == 1 and _is_of_convolution(sources[0])):
            return None
    return "products run on floats unless a convolution gives a factor, which it writes as bytes then"


def _is_of_convolution(node: Node) -> bool:
    if isinstance(module_of(node), BATCH_NORMS):
        node = node.all_input_nodes[0]
    return isinstance(module_of(node), (nn.Conv1d, nn.Conv2d, nn.Conv3d))


OPENVINO = register_backend(
    Backend(
        "openvino",
        rules=(
            # Functions after a layer are fused into it, past any quantize that stands between: so none does.
            integer_rule(CONV_PATTERNS, ACTIVATION, symmetric_weight, float_result=True),
            # A convolution adds a residual in place, as bytes, if its own result has qparams. Without them it writes
            # bf16 where its input is read by another layer, too, and another kernel adds: 5 of 8 sums of ResNet-18.
            replace(integer_rule(SUMS, ACTIVATION), where=adds_to_convolution),
            # A product is a kernel for floats that reads bytes. With float factors, as those of squeeze-and-excitation,
            # the convolution before it writes bf16, and what else reads its result needs a kernel that quantizes.
            replace(integer_rule(PRODUCTS, ACTIVATION), where=scales_convolution),
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
"""Not in the table, because it runs them in float: other sums and products, functions of one tensor, softmax, layer
norm, dynamic and transposed layers."""
