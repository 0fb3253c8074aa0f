"""From how much work on a layer is faster in int8 than in float, where all around it is float."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakEven:
    """How much a layer with a weight must multiply to be faster in int8, where all around it is float.

    Its input is then quantized for it alone.
    """

    of_one_row: int
    """Multiply-accumulates of a linear layer on one row: with fewer, a call costs more than they save."""
    of_linear: float
    """Multiply-accumulates of a linear layer for each value of its input and of its result: with fewer, memory is the
    limit."""
    of_convolution: float
    """The same of a convolution, whose values are also put into another order in memory. Depthwise and transposed
    convolutions have no limit: they are slower in float."""
    values: int
    """Of input and result together, from which these count: fewer stay in the cache between operators."""


CPU_BREAK_EVEN = BreakEven(of_one_row=3 << 15, of_linear=2.0, of_convolution=13.0, values=1 << 14)
"""Measured on one thread by ``benchmarks/int8_units.py --layers``: a call takes 15 µs where a float layer takes 6."""
