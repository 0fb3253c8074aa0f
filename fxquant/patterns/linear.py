"""Linear layers, products of two activations, and embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn
from torch.fx import Node

from fxquant.graph.affine import ChannelAffine
from fxquant.graph.query import called_module, value_of
from fxquant.kernels.matmul.matmul import MOST_PRODUCTS
from fxquant.patterns.batch_norm import fixed_statistics, normalized
from fxquant.patterns.elementwise import clamped, constant_bounds
from fxquant.patterns.pattern import Check, Op, Output, Pattern, Reject, all_of, number, op, tensor
from fxquant.patterns.unary import factor_of

LINEAR = op(nn.Linear)(tensor("x")).named("linear")
LINEAR_BN = normalized(LINEAR)


def features_are_channels(captures: Mapping[str, Node]) -> Reject | None:
    """A batch norm takes the [N, L, F] of a linear layer for [N, C, L]: its channels are then no features."""
    value, norm = value_of(captures["linear"]), called_module(captures["bn"])
    if isinstance(norm, ChannelAffine):
        return Reject("it multiplies along another dimension than the features") if norm.behind else None
    if value is not None and not value.has_shape:
        return Reject("what the batch norm normalizes is not known without example inputs")
    if value is not None and len(value.shape) != 2:
        return Reject("the batch norm normalizes dimension 1, which holds no features of the linear layer")
    return None


CAN_FOLD = all_of(fixed_statistics, features_are_channels)

LINEAR_PATTERNS = (
    Pattern(
        "linear_bn_act", clamped(LINEAR_BN), inputs=("x",), weight="linear", check=all_of(CAN_FOLD, constant_bounds)
    ),
    Pattern("linear_bn", LINEAR_BN, inputs=("x",), weight="linear", check=CAN_FOLD),
    Pattern("linear_act", clamped(LINEAR), inputs=("x",), weight="linear", check=constant_bounds),
    Pattern("linear", LINEAR, inputs=("x",), weight="linear"),
)


def _measured_in_each_call(name: str, *, per_token: bool) -> tuple[Pattern, Pattern]:
    """Return the patterns of a linear layer whose input has its range from each call: with a clamp, and without."""

    def pattern(name: str, root: Op, check: Check | None = None) -> Pattern:
        floats = Output.FLOAT
        return Pattern(name, root, (), "linear", output=floats, dynamic=("x",), per_token=per_token, check=check)

    return pattern(f"{name}_act", clamped(LINEAR), constant_bounds), pattern(name, LINEAR)


DYNAMIC_LINEAR = _measured_in_each_call("dynamic_linear", per_token=False)
"""Here the input comes in floats, and each call measures it."""

PER_TOKEN_LINEAR = _measured_in_each_call("per_token_linear", per_token=True)
"""The same, with a range for each row."""

WEIGHT_ONLY_LINEAR = (Pattern("weight_only_linear", LINEAR, (), "linear", output=Output.FLOAT, weight_only=True),)
"""Here products are those of floats; the weight is stored small."""

MATMUL = op(torch.matmul, torch.bmm, torch.mm)(tensor("a"), tensor("b")).named("matmul")
SCALED = op(torch.mul, torch.div)(MATMUL, number("number")).named("scaled")


def two_factors(captures: Mapping[str, Node]) -> Reject | None:
    """``torch.bmm(a, b, out_dtype=...)``: whatever stands there beside the factors changes the result."""
    node = captures["matmul"]
    extra = [str(arg) for arg in node.args[2:]] + [f"{name}={value}" for name, value in node.kwargs.items()]
    return Reject(f"{extra[0]}: only a plain product has an integer form", node) if extra else None


def int32_accumulators(captures: Mapping[str, Node]) -> Reject | None:
    """Sums of products of steps are kept in int32, which must never overflow."""
    value = value_of(captures["a"])
    if value is not None and not value.has_shape:
        return Reject("the number of products is not known without example inputs", captures["matmul"])
    if value is not None and value.shape[-1] > MOST_PRODUCTS:
        products = f"{value.shape[-1]} products per output can overflow an int32 sum"
        return Reject(f"{products}; {MOST_PRODUCTS} cannot", captures["matmul"])
    return None


def scales_only(captures: Mapping[str, Node]) -> Reject | None:
    """A positive number is part of the scale; anything else is a unit of its own."""
    scaled = captures["scaled"]
    if scaled.kwargs or not 0 < factor_of(scaled) < math.inf:
        return Reject(
            f"it is more than a product times a positive number: {scaled.args[1]}, {dict(scaled.kwargs)}", scaled
        )
    return None


PLAIN = all_of(two_factors, int32_accumulators)

MATMUL_PATTERNS = (
    Pattern("matmul_act", clamped(MATMUL), ("a", "b"), arithmetic=True, check=all_of(PLAIN, constant_bounds)),
    Pattern("matmul_scaled", SCALED, ("a", "b"), arithmetic=True, check=all_of(PLAIN, scales_only)),
    Pattern("matmul", MATMUL, ("a", "b"), arithmetic=True, check=PLAIN),
)


def rows_stay(captures: Mapping[str, Node]) -> Reject | None:
    """``max_norm`` shortens rows of the table in the forward that reads them."""
    limit = called_module(captures["embedding"]).max_norm
    return None if limit is None else Reject(f"max_norm={limit} changes the table in forward", captures["embedding"])


EMBEDDING = tuple(
    Pattern(
        name,
        op(layer)(tensor("indices")).named("embedding"),
        inputs=(),
        weight="embedding",
        output=Output.FLOAT,
        check=rows_stay,
    )
    for name, layer in (("embedding", nn.Embedding), ("embedding_bag", nn.EmbeddingBag))
)
