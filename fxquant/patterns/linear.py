"""Linear layers, alone or with a clamp behind them."""

from __future__ import annotations

from torch import nn

from fxquant.patterns.activation import clamped, constant_bounds
from fxquant.patterns.pattern import Pattern, op, tensor

LINEAR = op(nn.Linear)(tensor("x")).named("linear")

LINEAR_PATTERNS = (
    Pattern("linear_act", clamped(LINEAR), ("x",), "linear", check=constant_bounds),
    Pattern("linear", LINEAR, ("x",), "linear"),
)
