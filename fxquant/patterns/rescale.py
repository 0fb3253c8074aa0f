"""A positive number as a factor: the integers stay, and stand for multiples of what they stood for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from fxquant.patterns.pattern import Output, Pattern, Reject, number, op, tensor

LARGEST = 2.0**20
"""Factors from one in this to this: scales stay numbers of float32, far from its ends."""


def factor_of(scaled: Node) -> float:
    """What a node that is captured as ``scaled`` multiplies its tensor with."""
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
