"""Activations that are clamps: alone they keep their input's grid, behind an operator they are part of its epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch.fx import Node

from fxquant.graph.canonical import canonical_target
from fxquant.patterns.pattern import Op, Output, Pattern, Reject, op, tensor
from fxquant.spec import Clamp


def _bounds(node: Node) -> Clamp | None:
    arguments: Any = node.args
    _, low, high = arguments  # the normalize pass writes defaults out
    return None if isinstance(low, Node) or isinstance(high, Node) else Clamp(float(low), float(high))


CLAMPS: dict[object, Callable[[Node], Clamp | None]] = {
    canonical_target(F.relu): lambda node: Clamp(0.0, None),
    canonical_target(F.relu6): lambda node: Clamp(0.0, 6.0),
    canonical_target(F.hardtanh): _bounds,
}


def clamp_of(node: Node) -> Clamp | None:
    """The bounds that an activation node of a normalized graph clamps to; None if they are computed at run time."""
    return CLAMPS[node.target](node)


def constant_bounds(captures: Mapping[str, Node]) -> Reject | None:
    """A clamp is part of the unit only if its bounds are known beforehand."""
    if clamp_of(captures["act"]) is None:
        return Reject("its bounds are computed at run time", captures["act"])
    return None


def clamped(inner: Op) -> Op:
    """``inner`` followed by any activation that is a clamp, captured as ``act``."""
    return Op(tuple(CLAMPS), (inner,), name="act")


ACTIVATION = (
    Pattern("relu", op(F.relu)(tensor("x")).named("act"), output=Output.CLAMPED),
    Pattern("relu6", op(F.relu6)(tensor("x")).named("act"), output=Output.CLAMPED),
    Pattern("hardtanh", op(F.hardtanh)(tensor("x")).named("act"), output=Output.CLAMPED, check=constant_bounds),
)
