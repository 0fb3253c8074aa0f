"""From how much work on a layer is faster in int8 than in float, where all around it is float."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from fxquant.graph.macs import CONVOLUTIONS, TRANSPOSED
from fxquant.graph.query import module_of


@dataclass(frozen=True, slots=True)
class BreakEven:
    """How much a layer must multiply to be faster in int8, where all around it is float.

    Its input is then quantized for it alone. Both limits are measured.
    """

    products: int
    """Multiply-accumulates in all: with fewer, a call costs more than they save."""
    per_value: Callable[[Node], float]
    """Of the node that multiplies: multiply-accumulates for each value of its inputs and of its result."""


def products_per_value(node: Node) -> float:
    """How many products for each value pay for quantizing the input, by what the float operator is good at.

    Measured on one thread by ``benchmarks/int8_units.py --layers``. Windows of more than one pixel are dear in float.
    What reads each pixel once is a product of matrices there, and so is a transposed convolution without overlap.
    """
    layer: Any = module_of(node)
    if layer is None:
        return 24.0  # a product of two values, both of which are quantized
    if not isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED)):
        return 2.0
    if isinstance(layer, TRANSPOSED):
        return 32.0 if layer.kernel_size == layer.stride else 2.0
    return 10.0 if math.prod(layer.kernel_size) == 1 else 2.0


CPU_BREAK_EVEN = BreakEven(products=1 << 12, per_value=products_per_value)
"""A call of a program takes 15 µs where a float layer takes 6, which 2^16 products and more make up for on one thread.

The limit is lower, since models often run on more rows than their example has."""
