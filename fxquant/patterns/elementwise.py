"""Operators of two or more tensors, element by element, and concatenation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from fxquant.patterns.activation import clamped, constant_bounds
from fxquant.patterns.pattern import Output, Pattern, Reject, all_of, op, tensor, tensors

ADD = op(torch.add)(tensor("a"), tensor("b")).named("add")
MUL = op(torch.mul)(tensor("a"), tensor("b")).named("mul")


def plain_add(captures: Mapping[str, Node]) -> Reject | None:
    """``torch.add(a, b, alpha=2)`` is a different sum."""
    node = captures["add"]
    alpha = node.kwargs.get("alpha", 1)
    return None if alpha == 1 else Reject(f"alpha={alpha}: only a plain sum has an integer form", node)


ELEMENTWISE = (
    Pattern("add_act", clamped(ADD), ("a", "b"), check=all_of(plain_add, constant_bounds)),
    Pattern("add", ADD, ("a", "b"), check=plain_add),
    Pattern("mul_act", clamped(MUL), ("a", "b"), check=constant_bounds),
    Pattern("mul", MUL, ("a", "b")),
    Pattern("cat", op(torch.cat)(tensors("x")).named("cat"), ("x",), output=Output.ONE_FOR_ALL),
)
