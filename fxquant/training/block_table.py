"""The table of what ``reconstruct`` has learned, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fxquant.graph.text_table import PrintedTable
from fxquant.training.weighted_units import Left


@dataclass(frozen=True, slots=True)
class LearnedBlock:
    """The mean squared error of what one block gives, on the inputs that the quantized blocks before it give."""

    block: str
    """Path of the module that holds its layers, or of the only one."""
    units: tuple[str, ...]
    """Roots of the units whose weights were learned."""
    weights: int
    """Weights whose rounding was learned."""
    scales: int
    """Scales of activations that were learned."""
    before: float
    """As the block was: mostly with weights rounded to nearest, and corrected biases."""
    learned: float
    """With what was learned; as before where that gave no smaller error."""
    unchanged: bool
    """The error did not fall, and the block is as it was."""

    @property
    def part(self) -> float:
        """Return the part of the error that is left."""
        return self.learned / self.before if self.before > 0 else 1.0


@dataclass(frozen=True, slots=True)
class LearnedBlocks(PrintedTable[LearnedBlock]):
    """Shows what ``reconstruct`` has gained. Print it, or read ``rows``."""

    _HEAD: ClassVar[tuple[str, ...]] = ("block", "layers", "weights", "scales", "error before", "learned", "part")
    _ALIGN: ClassVar[str] = "lrrrrrr"
    _LEGEND: ClassVar[str] = "scales of activations; errors are mean squares of what a block gives"

    left: tuple[Left, ...] = ()
    """Units with a weight that was not learned."""

    def _cells(self, rows: Sequence[LearnedBlock]) -> Iterable[Sequence[Any]]:
        for row in rows:
            errors = (f"{row.before:.4g}", f"{row.learned:.4g}", "as before" if row.unchanged else f"{row.part:.0%}")
            yield row.block, len(row.units), f"{row.weights:,}", row.scales, *errors

    def _sentences(self) -> list[str]:
        return [f"{each.unit} was not learned: {each.reason}" for each in self.left]
