"""Numbers as JSON has them: short, and words where JSON has none."""

from __future__ import annotations

import math

from torch import Tensor

DIGITS = 5
"""Significant digits that are kept: more than any picture shows."""


def short(value: float) -> float | str:
    """Return a number of ``DIGITS`` digits; ``inf``, ``-inf`` and ``nan`` as words, for which JSON has no numbers."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)


def shorts(values: Tensor) -> list[float | str]:
    """Return all numbers of a tensor, in the order of its dimensions."""
    return [short(value) for value in values.detach().double().flatten().tolist()]
