"""Results of tuning, measured and decided, as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fxquant.graph.text_table import PrintedTable, shortened
from fxquant.measure.coverage import Coverage

Fate = Literal["int8", "float"]
LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class TuningRow:
    """One unit. Times are medians, without what comes before and after it."""

    unit: str
    """Name of its root."""
    module: str
    """Path of the user's module; empty at top level."""
    pattern: str
    int8_us: float
    float_us: float
    borders_us: float
    """What quantizing its inputs and dequantizing its result would take, were all around it float."""
    fate: Fate

    @property
    def reason(self) -> str:
        """Why it stays float, in a sentence; empty if it does not."""
        if self.fate == "int8":
            return ""
        times = f"measured: {self.int8_us:.1f} µs in int8, {self.float_us:.1f} µs in float"
        return (
            times if self.int8_us >= self.float_us else f"{times}; borders (up to {self.borders_us:.1f} µs) cost more"
        )


@dataclass(frozen=True, slots=True)
class Tuning(PrintedTable[TuningRow]):
    """Shows what ``convert(..., tune=batch)`` measured on this machine. Print it, or read ``rows``."""

    _HEAD = ("unit", "pattern", "int8 µs", "float µs", "borders µs", "runs as")
    _ALIGN = "llrrrl"

    rows: tuple[TuningRow, ...]
    coverage: Coverage
    """Of the tuned model: what stays float, and why."""
    threads: int
    float_ms: float
    """A call of the float model as it was traced, attention taken apart."""
    int8_ms: float
    """A call of the model with every unit in int8."""
    tuned_ms: float
    """A call of the model that was chosen, the fastest of those that were measured."""

    @property
    def in_float(self) -> tuple[TuningRow, ...]:
        """Return the units that are left in float."""
        return tuple(row for row in self.rows if row.fate == "float")

    def _cells(self, rows: Sequence[TuningRow]) -> list[tuple[str, ...]]:
        return [
            (
                shortened(row.module or row.unit, LONGEST_NAME),
                row.pattern,
                f"{row.int8_us:.1f}",
                f"{row.float_us:.1f}",
                f"{row.borders_us:.1f}",
                row.fate,
            )
            for row in rows
        ]

    def _sentences(self) -> list[str]:
        times = f"float {self.float_ms:.3f} ms, all in int8 {self.int8_ms:.3f} ms, tuned {self.tuned_ms:.3f} ms"
        return [
            f"{len(self)} units measured on {self.threads} thread{'' if self.threads == 1 else 's'},"
            f" {len(self.in_float)} stay float. The whole model: {times};"
            f" tuned is {self.float_ms / self.tuned_ms:.2f} times as fast as float."
        ]
