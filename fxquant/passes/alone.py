"""Which layers between float operators multiply too little to pay for their borders."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch.fx import Node

from fxquant.backends.break_even import BreakEven
from fxquant.graph.macs import multiply_accumulates
from fxquant.graph.query import value_of
from fxquant.patterns.pattern import Match

FEW_PRODUCTS = "slower in int8 alone: {:,} products in all, and a call pays from {:,} on"
FEW_PER_VALUE = "slower in int8 alone: {:.1f} products for each value that it reads or gives, and {:.0f} pay"


def slower_alone(layers: Iterable[Match], limits: BreakEven) -> dict[Node, str]:
    """Of layers that read floats and give floats, those that are slower in int8: root -> the reason.

    Their sizes are those on the example inputs.
    """
    return {found.nodes[-1]: reason for found in layers if (reason := _why_slower(found, limits))}


def _why_slower(found: Match, limits: BreakEven) -> str:
    products = sum(multiply_accumulates(node) for node in found.nodes)
    ends = (*(found.captures[name] for name in found.inputs), found.nodes[-1])
    values = [value_of(node) for node in ends]
    moved = sum(math.prod(value.shape) for value in values if value is not None)
    if not products or not moved or found.pattern.handler is not None:
        return ""  # nobody knows how much it multiplies
    if products < limits.products:
        return FEW_PRODUCTS.format(products, limits.products)
    needed = limits.per_value(max(found.nodes, key=multiply_accumulates))
    return FEW_PER_VALUE.format(products / moved, needed) if products < moved * needed else ""
