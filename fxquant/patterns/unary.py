"""Functions of one tensor, element by element: a lookup table of 256 results, or a factor of the scale."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from fxquant.graph.query import function_name
from fxquant.patterns.pattern import Bounded, Check, Op, Output, Pattern, Reject, number, op, tensor

SMOOTH_POWERS = (2, 3)
"""Exponents of powers that are smooth between one step and the next; roots and reciprocals are steep near 0."""


def constants_only(captures: Mapping[str, Node]) -> Reject | None:
    """A table is filled once, so the function must be the same in every call."""
    node = captures["function"]
    computed = [arg for arg in node.all_input_nodes if arg is not captures["x"]]
    if computed:
        return Reject(f"{computed[0].name!r}, which it takes besides, is computed at run time", node)
    return None


def not_random(captures: Mapping[str, Node]) -> Reject | None:
    """A randomized ReLU draws its slopes while training; else it has the middle of their range."""
    node: Any = captures["function"]
    if node.op == "call_module":
        return None
    training = node.args[3] if len(node.args) > 3 else node.kwargs.get("training", False)
    return Reject("it draws its slopes even in evaluation mode (training=True)", node) if training else None


def smooth_power(captures: Mapping[str, Node]) -> Reject | None:
    exponent: Any = captures["exponent"]
    if exponent not in SMOOTH_POWERS:
        return Reject(f"only squares and cubes are smooth enough between two steps, not the power of {exponent}")
    return None


def no_alpha(captures: Mapping[str, Node]) -> Reject | None:
    """``torch.add(x, 2, alpha=3)``: legal, and never written."""
    alpha = captures["function"].kwargs.get("alpha", 1)
    return None if alpha == 1 else Reject(f"alpha={alpha}: only plain sums and differences have an integer form")


def no_rounding(captures: Mapping[str, Node]) -> Reject | None:
    """``torch.div(x, 2, rounding_mode="floor")`` is a staircase."""
    mode = captures["function"].kwargs.get("rounding_mode")
    return None if mode is None else Reject(f"rounding_mode={mode!r}: it jumps, and not where quantized values do")


def _function(target: Any, output: Output | Bounded = Output.OBSERVED, name: str = "") -> Pattern:
    tree = op(target)(tensor("x")).named("function")
    return Pattern(name or function_name(target), tree, output=output, check=constants_only)


def _with_number(name: str, target: Any, check: Check | None = None, number_name: str = "number") -> Pattern:
    tree = op(target)(tensor("x"), number(number_name)).named("function")
    return Pattern(name, tree, check=check)


UNIT_INTERVAL = Bounded(0.0, 1.0)

BOUNDED = (
    _function(torch.sigmoid, UNIT_INTERVAL),
    _function(F.hardsigmoid, UNIT_INTERVAL),
    _function(torch.tanh, Bounded(-1.0, 1.0)),
)
"""They have an answer for every number; where the input is float anyway, it is read as it is, not quantized."""

PRELU = (Pattern("prelu", op(nn.PReLU)(tensor("x")).named("function")),)
"""With a slope for each channel it is another function in every channel."""

UNARY = (
    *BOUNDED,
    *(_function(f) for f in (F.hardswish, F.silu, F.gelu, F.mish, F.elu, F.celu, F.selu, F.leaky_relu, F.softplus)),
    *(_function(f) for f in (F.softsign, F.tanhshrink, F.softshrink, F.hardshrink)),
    _function(F.threshold, name="threshold"),
    _function(F.logsigmoid, name="logsigmoid"),
    *(_function(f) for f in (torch.neg, torch.abs, torch.square)),
    *(_function(f) for f in (torch.atan, torch.asinh, torch.erf, torch.erfc)),
    Pattern("rrelu", op(nn.RReLU, F.rrelu, torch.rrelu)(tensor("x")).named("function"), check=not_random),
    _with_number("add_number", torch.add, no_alpha),
    _with_number("sub_number", torch.sub, no_alpha),
    _with_number("number_sub", torch.rsub, no_alpha),
    _with_number("mul_number", torch.mul),
    _with_number("div_number", torch.div, no_rounding),
    # Tensors have no method for it, so the normalize pass leaves ``2 / x`` as it is.
    Pattern("number_div", Op((operator.truediv,), (number("number"), tensor("x")), name="function")),
    _with_number("pow_number", torch.pow, smooth_power, number_name="exponent"),
)
"""The function's node is captured as ``function``, its tensor as ``x``."""

LARGEST = 2.0**20
"""Factors from one in this to this: scales stay numbers of float32, far from its ends."""


def factor_of(scaled: Node) -> float:
    """Return the number that a node captured as ``scaled`` multiplies its tensor with."""
    divisor: Any = scaled.args[1]
    if scaled.target is torch.mul:
        return float(divisor)
    return 1 / divisor if divisor else math.inf


def is_scale(captures: Mapping[str, Node]) -> Reject | None:
    """A positive number is part of the scale; anything else makes other integers."""
    scaled = captures["scaled"]
    if scaled.kwargs or not 1 / LARGEST <= factor_of(scaled) <= LARGEST:
        return Reject(f"{scaled.args[1]} is no factor of a scale", scaled)
    return None


RESCALE = (
    Pattern(
        "rescale",
        op(torch.mul, torch.div)(tensor("x"), number("number")).named("scaled"),
        output=Output.PICKED,
        factor=lambda captures: factor_of(captures["scaled"]),
        check=is_scale,
    ),
)
