"""Which layers between float operators multiply too little to pay for their borders."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import nn
from torch.fx import Node

from fxquant.backends.break_even import BreakEven
from fxquant.graph.macs import CONVOLUTIONS, TRANSPOSED, multiply_accumulates
from fxquant.graph.query import module_of, value_of
from fxquant.patterns.pattern import Match

LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)

ONE_ROW = "slower in int8 alone: {:,} products on one row, and a call pays from {:,} on"
FEW_PER_VALUE = "slower in int8 alone: {:.1f} products for each value that it reads or gives, and {:g} pay"


def slower_alone(layers: Iterable[Match], limits: BreakEven) -> dict[Node, str]:
    """Of layers that read floats and give floats, those that are slower in int8: root -> the reason.

    Their sizes are those on the example inputs.
    """
    return {found.nodes[-1]: reason for found in layers if (reason := _why_slower(found, limits))}


def _why_slower(found: Match, limits: BreakEven) -> str:
    layer = next((node for node in found.nodes if isinstance(module_of(node), LAYERS)), None)
    result = None if layer is None else value_of(layer)
    if layer is None or result is None or found.pattern.handler is not None:
        return ""  # nobody knows how much it multiplies
    products = multiply_accumulates(layer)
    ends = (*(found.captures[name] for name in found.inputs), found.nodes[-1])
    values = [value_of(node) for node in ends]
    moved = sum(math.prod(value.shape) for value in values if value is not None)
    has_one_row = isinstance(module_of(layer), nn.Linear) and math.prod(result.shape[:-1]) == 1
    if has_one_row and products < limits.of_one_row:
        return ONE_ROW.format(products, limits.of_one_row)
    pays = _products_that_pay(module_of(layer), limits)
    if moved >= limits.values and products < moved * pays:
        return FEW_PER_VALUE.format(products / moved, pays)
    return ""


def _products_that_pay(layer: nn.Module | None, limits: BreakEven) -> float:
    """Return how many products for each value make a layer of this kind faster in int8."""
    if isinstance(layer, nn.Linear):
        return limits.of_linear
    is_depthwise = getattr(layer, "groups", 1) == getattr(layer, "in_channels", 0) > 1
    return limits.of_convolution if isinstance(layer, CONVOLUTIONS) and not is_depthwise else 0.0
