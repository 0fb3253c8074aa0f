"""The table of what ``adaround`` has learned, unit by unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fxquant.graph.text_table import format_rows
from fxquant.training.weighted_units import Left


@dataclass(frozen=True, slots=True)
class UnitLoss:
    """The squared error of one unit on what it learned from: the sum over channels, the mean over all else."""

    unit: str
    pattern: str
    nearest: float
    """With each weight rounded to the nearest step, or as it was given."""
    learned: float
    """With what was learned."""


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """Shows what learning to round has gained. Print it, or read ``rows``."""

    rows: tuple[UnitLoss, ...]
    """In the order in which the units were learned."""
    left: tuple[Left, ...] = ()
    """Units with a weight whose rounding was not learned."""

    def __iter__(self) -> Iterator[UnitLoss]:
        return iter(self.rows)

    def __str__(self) -> str:
        table = [
            (row.unit, row.pattern, f"{row.nearest:.4g}", f"{row.learned:.4g}", f"{_part(row):.0%}")
            for row in self.rows
        ]
        text = format_rows(table, ("unit", "pattern", "error before", "learned", "part"), "llrrr")
        return "\n".join([text, *(f"{each.unit} is rounded to nearest: {each.reason}" for each in self.left)])


def _part(row: UnitLoss) -> float:
    return row.learned / row.nearest if row.nearest > 0 else 1.0
