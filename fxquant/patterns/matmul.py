"""Products of two activations, alone or times a number: what attention multiplies."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch.fx import Node

from fxquant.graph.query import value_of
from fxquant.kernels.matmul.matmul import MOST_PRODUCTS
from fxquant.patterns.activation import clamped, constant_bounds
from fxquant.patterns.pattern import Pattern, Reject, all_of, number, op, tensor
from fxquant.patterns.rescale import factor_of

MATMUL = op(torch.matmul, torch.bmm, torch.mm)(tensor("a"), tensor("b")).named("matmul")
SCALED = op(torch.mul, torch.div)(MATMUL, number("number")).named("scaled")


def two_factors(captures: Mapping[str, Node]) -> Reject | None:
    """``torch.bmm(a, b, out_dtype=...)``: whatever stands there beside the factors changes the result."""
    node = captures["matmul"]
    extra = [str(arg) for arg in node.args[2:]] + [f"{name}={value}" for name, value in node.kwargs.items()]
    return Reject(f"{extra[0]}: only a plain product has an integer form", node) if extra else None


def int32_sums(captures: Mapping[str, Node]) -> Reject | None:
    """Sums of products of steps are kept in int32, which must never overflow."""
    value = value_of(captures["a"])
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


PLAIN = all_of(two_factors, int32_sums)

MATMUL_PATTERNS = (
    Pattern("matmul_act", clamped(MATMUL), ("a", "b"), arithmetic=True, check=all_of(PLAIN, constant_bounds)),
    Pattern("matmul_scaled", SCALED, ("a", "b"), arithmetic=True, check=all_of(PLAIN, scales_only)),
    Pattern("matmul", MATMUL, ("a", "b"), arithmetic=True, check=PLAIN),
)
