"""Results of ``sensitivity``, as rows, as a table, and as a configuration that spares the worst units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fxquant.analysis.overrides import Address, keeping
from fxquant.errors import InputError
from fxquant.graph.text_table import PrintedTable, short_line, shortened
from fxquant.plan.qconfig import QConfigMapping

SHOWN = 20
"""Rows that are printed; all of them are in ``rows``."""
_NAME, _PATTERN, _LINE = 34, 18, 22


@dataclass(frozen=True, slots=True)
class UnitCost:
    """The cost of one unit alone: it is quantized, and all others are float."""

    unit: str
    """Name of the node that is its root."""
    name: str
    """What to call it in a message: the path of a layer; of any other value also which one it is."""
    pattern: str
    line: str
    """``path:line`` of the user's code."""
    value: float
    """The metric with this unit alone quantized; by default, the signal to noise of the model's output in dB."""
    cost: float
    """How much worse than the float model that is: of the default metric, noise over signal, which adds up over units;
    of the user's, the difference."""
    batches: int
    """Over how many batches: fewer than those of others where the measurement was interrupted."""


@dataclass(frozen=True, slots=True)
class Sensitivity(PrintedTable[UnitCost]):
    """Shows what each unit costs alone. Print it, read ``rows``, or ask for a ``mapping`` that spares the worst."""

    _ALIGN = "llrrl"
    _SHOWN = SHOWN

    rows: tuple[UnitCost, ...]
    """The most expensive first."""
    metric: str
    """Its name."""
    float_value: float
    """The metric of the float model."""
    quantized_value: float
    """The metric with all units quantized; NaN if that was interrupted."""
    batches: int
    missing: tuple[str, ...]
    """Names of units that were not reached before an interrupt."""
    config: QConfigMapping
    """The configuration that was measured."""
    addresses: dict[str, tuple[Address, ...]]
    """Root of a unit -> by what rules its operators are meant."""

    def worst(self, count: int = 3) -> tuple[UnitCost, ...]:
        """Return the most expensive units."""
        return self.rows[:count]

    def mapping(self, count: int, to: str = "float") -> QConfigMapping:
        """Return the configuration that was measured, with rules that keep the most expensive units from 8 bits.

        Args:
            count: How many units.
            to: ``"float"``; or ``"int16"``: qparams of 16 bits, where the back end has them (``backend="reference"``
                simulates them); where it has not, the units stay float, and ``print(prepared)`` says so.

        Returns:
            A new mapping for ``prepare``. A unit of several operators has a rule for each.

        Raises:
            InputError: ``count`` is no number of units.
            UnknownNameError: ``to`` is neither.
        """
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= len(self):
            raise InputError("count is no number of units", got=repr(count), expected=f"0 to {len(self)}")
        return keeping(self.config, [self.addresses[row.unit] for row in self.worst(count)], to)

    def _cells(self, rows: Sequence[UnitCost]) -> Iterable[tuple[str, ...]]:
        return map(_cells, rows)

    def _left_out(self, rows: Sequence[UnitCost]) -> str:
        return f"and {len(rows)} more, each of which costs no more than these"

    def _head(self) -> tuple[str, ...]:
        return "unit", "pattern", self.metric, "cost", "line"

    def _sentences(self) -> list[str]:
        lines = [
            f"{self.metric} over {self.batches} batch{'' if self.batches == 1 else 'es'}: float {self.float_value:.4g},"
            f" all {len(self) + len(self.missing)} units {self.quantized_value:.4g}; each row: that unit alone."
        ]
        if self.missing:
            lines.append(f"interrupted: {len(self.missing)} units were not measured")
        return lines


def _cells(row: UnitCost) -> tuple[str, ...]:
    return (
        shortened(row.name, _NAME),
        shortened(row.pattern, _PATTERN),
        f"{row.value:.4g}",
        f"{row.cost:.3g}",
        shortened(short_line(row.line), _LINE),
    )
