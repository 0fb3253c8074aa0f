"""The table of what was scaled: region by region, with what it brought, or why nothing was scaled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fxquant.graph.text_table import PrintedTable

NAMES = 3
"""Layers of one cell that are named."""


@dataclass(frozen=True, slots=True)
class EqualizedRegion:
    """One region: the layers that make some values, and those that read them."""

    sources: tuple[str, ...]
    """The qualified names of the layers that make the values."""
    sinks: tuple[str, ...]
    """Those of the layers that read them."""
    channels: int
    """Channels that one factor each could scale, and those that keep their scale whatever the weights are."""
    scaled: int
    """Channels with another factor than 1."""
    largest: float
    """The largest factor; of one below 1, its inverse."""
    outcome: str
    """Whether the factors are used, and why not if they are not."""
    before: float | None = None
    """Noise of what the sinks give, over its signal, without the factors; None where it was not measured."""
    after: float | None = None
    """The same with the factors."""


@dataclass(frozen=True, slots=True)
class Equalization(PrintedTable[EqualizedRegion]):
    """Shows what ``equalize`` has scaled. Print it, or read ``rows``."""

    _HEAD: ClassVar[tuple[str, ...]] = ("sources", "sinks", "channels", "scaled", "largest", "noise", "outcome")
    _ALIGN: ClassVar[str] = "llrrrll"
    _LEGEND: ClassVar[str] = (
        "sources make the values, sinks read them, or make keys for queries; largest: the largest factor of a channel, "
        "or its inverse; noise of what the sinks give, or of products of queries and keys, over its signal"
    )

    note: str = ""
    """What holds for all rows."""

    @property
    def scaled(self) -> int:
        """Return how many channels have another factor than 1."""
        return sum(row.scaled for row in self.rows)

    def _cells(self, rows: Sequence[EqualizedRegion]) -> Iterable[Sequence[Any]]:
        for row in rows:
            largest = f"{row.largest:.3g}" if row.scaled else "–"
            yield (
                _names(row.sources),
                _names(row.sinks),
                row.channels,
                row.scaled,
                largest,
                _noise(row),
                row.outcome,
            )

    def _sentences(self) -> list[str]:
        return [self.note] if self.note else []


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return (", ".join(names[:NAMES]) or "–") + more


def _noise(row: EqualizedRegion) -> str:
    if row.before is None or row.after is None:
        return "–"
    return f"{row.before:.3g} → {row.after:.3g}"
