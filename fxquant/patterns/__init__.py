"""Patterns of what can be one quantized unit, as tables, and the matcher that finds them."""

from fxquant.patterns.defaults import DEFAULT_PATTERNS
from fxquant.patterns.matcher import match
from fxquant.patterns.pattern import (
    Bounded,
    Match,
    Mismatch,
    Op,
    Output,
    Pattern,
    Reject,
    UnitView,
    number,
    op,
    tensor,
    tensors,
)
from fxquant.patterns.registry import known_patterns, register_pattern, unregister_pattern

__all__ = [
    "DEFAULT_PATTERNS",
    "Bounded",
    "Match",
    "Mismatch",
    "Op",
    "Output",
    "Pattern",
    "Reject",
    "UnitView",
    "known_patterns",
    "match",
    "number",
    "op",
    "register_pattern",
    "tensor",
    "tensors",
    "unregister_pattern",
]
