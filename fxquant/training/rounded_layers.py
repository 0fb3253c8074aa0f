"""The table of what ``gptq`` has rounded: layer by layer, the error of the outputs before and after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fxquant.graph.text_table import PrintedTable
from fxquant.training.weighted_units import Left


@dataclass(frozen=True, slots=True)
class RoundedLayer:
    """The squared error of the outputs of one layer: the sum over channels, the mean over all else."""

    unit: str
    pattern: str
    inputs: int
    """Weights of one output."""
    nearest: float
    """With each weight rounded to the nearest step, on the scales that its observer chose."""
    rounded: float
    """With the integers that were found."""
    note: str = ""
    """What was done otherwise than asked for, and why."""

    @property
    def part(self) -> float:
        """Return the part of the error that is left."""
        return self.rounded / self.nearest if self.nearest > 0 else 1.0


@dataclass(frozen=True, slots=True)
class RoundedLayers(PrintedTable[RoundedLayer]):
    """Shows what ``gptq`` has gained. Print it, or read ``rows``."""

    _HEAD: ClassVar[tuple[str, ...]] = ("unit", "pattern", "inputs", "nearest", "rounded", "part", "note")
    _ALIGN: ClassVar[str] = "llrrrrl"
    _LEGEND: ClassVar[str] = "nearest, rounded: squared error of the outputs, over their number in each channel"

    left: tuple[Left, ...] = ()
    """Units with a weight that stays as convert rounds it."""

    def _cells(self, rows: Sequence[RoundedLayer]) -> Iterable[Sequence[Any]]:
        for row in rows:
            yield (
                row.unit,
                row.pattern,
                row.inputs,
                f"{row.nearest:.4g}",
                f"{row.rounded:.4g}",
                f"{row.part:.0%}",
                row.note,
            )

    def _sentences(self) -> list[str]:
        return [f"{each.unit} is rounded as without gptq: {each.reason}" for each in self.left]
