"""Clamps, which are part of an epilogue or units of their own; sums, products and joins of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fxquant.graph.operators.spelling import canonical_target
from fxquant.patterns.pattern import Op, Output, Pattern, Reject, all_of, op, tensor, tensors
from fxquant.plan.spec import Clamp


def _bounds(node: Node) -> Clamp | None:
    arguments: Any = node.args
    _, *bounds = arguments  # the normalize pass writes defaults out
    if not all(bound is None or isinstance(bound, (int, float)) for bound in bounds):
        return None
    return Clamp(*(None if bound is None else float(bound) for bound in bounds))


def _bound_above(node: Node) -> Clamp | None:
    bounds = _bounds(node)
    return None if bounds is None else Clamp(None, bounds.low)


CLAMPS: dict[object, Callable[[Node], Clamp | None]] = {
    canonical_target(F.relu): lambda node: Clamp(0.0, None),
    canonical_target(F.relu6): lambda node: Clamp(0.0, 6.0),
    canonical_target(F.hardtanh): _bounds,
    canonical_target(torch.clamp): _bounds,
    canonical_target(torch.clamp_min): _bounds,
    canonical_target(torch.clamp_max): _bound_above,
}


def clamp_of(node: Node) -> Clamp | None:
    """Return the bounds that an activation node of a normalized graph clamps to; None if they are not numbers."""
    return CLAMPS[node.target](node)


def constant_bounds(captures: Mapping[str, Node]) -> Reject | None:
    """A clamp is part of the unit only if its bounds are known beforehand."""
    node = captures["act"]
    if (clamp := clamp_of(node)) is not None:
        unordered = any(math.isnan(bound) for bound in (clamp.low, clamp.high) if bound is not None)
        return Reject("one of its bounds is NaN", node) if unordered else None
    stored = next((bound for bound in node.all_input_nodes[1:] if bound.op == "get_attr"), None)
    if stored is None:
        return Reject("its bounds are computed at run time", node)
    return Reject(f"its bound {stored.target!r} is a tensor of several values, or one that training may change", node)


def bounds_hold_zero(captures: Mapping[str, Node]) -> Reject | None:
    """Refuse bounds without 0: the range of the input holds 0 always, and may not hold what is clamped to them."""
    clamp = clamp_of(captures["act"])
    if clamp is not None and ((clamp.low or 0.0) > 0 or (clamp.high or 0.0) < 0):
        return Reject("0 lies outside its bounds, so its values may lie outside its input's range", captures["act"])
    return None


def clamped(inner: Op) -> Op:
    """``inner`` followed by any activation that is a clamp, captured as ``act``."""
    return Op(tuple(CLAMPS), (inner,), name="act")


CLAMP = (torch.clamp, torch.clamp_min, torch.clamp_max)
AROUND_ZERO = all_of(constant_bounds, bounds_hold_zero)

ACTIVATION = (
    Pattern("relu", op(F.relu)(tensor("x")).named("act"), output=Output.CLAMPED),
    Pattern("relu6", op(F.relu6)(tensor("x")).named("act"), output=Output.CLAMPED),
    Pattern("hardtanh", op(F.hardtanh)(tensor("x")).named("act"), output=Output.CLAMPED, check=AROUND_ZERO),
    Pattern(
        "clamp",
        op(torch.clamp, torch.clamp_min, torch.clamp_max)(tensor("x")).named("act"),
        output=Output.CLAMPED,
        check=AROUND_ZERO,
    ),
    Pattern(
        "clamp_off_zero",
        op(F.hardtanh, torch.clamp, torch.clamp_min, torch.clamp_max)(tensor("x")).named("act"),
        check=constant_bounds,
    ),
)

ADD = op(torch.add)(tensor("a"), tensor("b")).named("add")
SUB = op(torch.sub)(tensor("a"), tensor("b")).named("sub")
MUL = op(torch.mul)(tensor("a"), tensor("b")).named("mul")


def plain_add(captures: Mapping[str, Node]) -> Reject | None:
    """``torch.add(a, b, alpha=2)`` is a different sum."""
    return _plain(captures["add"], "sum")


def plain_sub(captures: Mapping[str, Node]) -> Reject | None:
    return _plain(captures["sub"], "difference")


def _plain(node: Node, what: str) -> Reject | None:
    alpha = node.kwargs.get("alpha", 1)
    return None if alpha == 1 else Reject(f"alpha={alpha}: only a plain {what} has an integer form", node)


# Integers hold no NaN, so that fmax and fmin, which pass over it, are no other functions of them.
MAXIMUM = (torch.maximum, "maximum", torch.max, "max", torch.fmax, "fmax")
MINIMUM = (torch.minimum, "minimum", torch.min, "min", torch.fmin, "fmin")

ELEMENTWISE = (
    Pattern("add_act", clamped(ADD), ("a", "b"), check=all_of(plain_add, constant_bounds)),
    Pattern("add", ADD, ("a", "b"), check=plain_add),
    Pattern("sub_act", clamped(SUB), ("a", "b"), check=all_of(plain_sub, constant_bounds)),
    Pattern("sub", SUB, ("a", "b"), check=plain_sub),
    Pattern("mul_act", clamped(MUL), ("a", "b"), check=constant_bounds),
    Pattern("mul", MUL, ("a", "b")),
    Pattern("maximum", op(*MAXIMUM)(tensor("a"), tensor("b")).named("pick"), ("a", "b")),
    Pattern("minimum", op(*MINIMUM)(tensor("a"), tensor("b")).named("pick"), ("a", "b")),
    Pattern("cat", op(torch.cat)(tensors("x")).named("cat"), ("x",), output=Output.ONE_FOR_ALL),
    Pattern("stack", op(torch.stack)(tensors("x")).named("stack"), ("x",), output=Output.ONE_FOR_ALL),
)
