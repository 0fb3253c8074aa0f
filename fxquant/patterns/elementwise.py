"""Operators of two or more tensors, element by element, and what joins tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from fxquant.patterns.activation import clamped, constant_bounds
from fxquant.patterns.pattern import Output, Pattern, Reject, all_of, op, tensor, tensors

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


ELEMENTWISE = (
    Pattern("add_act", clamped(ADD), ("a", "b"), check=all_of(plain_add, constant_bounds)),
    Pattern("add", ADD, ("a", "b"), check=plain_add),
    Pattern("sub_act", clamped(SUB), ("a", "b"), check=all_of(plain_sub, constant_bounds)),
    Pattern("sub", SUB, ("a", "b"), check=plain_sub),
    Pattern("mul_act", clamped(MUL), ("a", "b"), check=constant_bounds),
    Pattern("mul", MUL, ("a", "b")),
    Pattern(
        "maximum", op(torch.maximum, "maximum", torch.max, "max")(tensor("a"), tensor("b")).named("pick"), ("a", "b")
    ),
    Pattern(
        "minimum", op(torch.minimum, "minimum", torch.min, "min")(tensor("a"), tensor("b")).named("pick"), ("a", "b")
    ),
    Pattern("cat", op(torch.cat)(tensors("x")).named("cat"), ("x",), output=Output.ONE_FOR_ALL),
    Pattern("stack", op(torch.stack)(tensors("x")).named("stack"), ("x",), output=Output.ONE_FOR_ALL),
)
