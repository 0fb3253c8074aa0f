"""The result of ``search_precision``: the bits of each layer, the front, and what was predicted and measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fxquant.analysis.overrides import Address
from fxquant.errors import InputError
from fxquant.graph.text_table import PrintedTable, format_rows, shortened
from fxquant.plan.precision import Choice, Cost
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.precision.budget import in_words

_NAME = 44
FRONT_SHOWN = 8
"""Points of the front that are printed; all of them are in ``pareto``."""


@dataclass(frozen=True, slots=True)
class PrecisionRow:
    """The bits of one group of units."""

    unit: str
    """Name of the root of its first unit."""
    name: str
    """Paths of its layers."""
    choice: str
    """Name of the candidate."""
    weight: int | None
    """Bits of the weight; None: there is none, or it is float."""
    activation: int | None
    """Bits of the result; None: it is float, as that of the last layer is, whatever the choice."""
    noise: float
    """What it adds to the noise of the model's output, over the signal; NaN where an interrupt left it unknown."""
    size: float
    """Bytes of its weights."""
    bitops: float
    latency: float
    activations: float
    together: str
    """Why several units have one choice; empty for one unit."""


@dataclass(frozen=True, slots=True)
class PrecisionPoint:
    """A choice for all groups, with its costs and the noise that is predicted."""

    choices: tuple[str, ...]
    """The name of the candidate of each group, in the order of the rows."""
    cost: Cost
    part: float
    """The mean of its size, bit operations and bytes of activations, as parts of all units at 8 bits."""
    noise: float
    """Noise over signal of the model's output: the sum over groups."""

    @property
    def sqnr(self) -> float:
        """Return the predicted signal to noise in dB."""
        return -10 * math.log10(self.noise) if self.noise > 0 else math.inf


@dataclass(frozen=True, slots=True)
class PrecisionSearch(PrintedTable[PrecisionRow]):
    """Shows the bits that were found for each layer. Print it, read ``rows``, or give ``mapping()`` to ``prepare``."""

    _HEAD: ClassVar[tuple[str, ...]] = ("layers", "choice", "weight", "result", "noise", "size", "bitops")
    _ALIGN: ClassVar[str] = "llrrrrr"
    _LEGEND: ClassVar[str] = (
        "weight, result: bits; noise: what it adds alone to that of the model's output, over the signal"
    )

    point: PrecisionPoint
    """What was found."""
    pareto: tuple[PrecisionPoint, ...]
    """The front of cost and predicted noise, the cheapest first, whatever was asked for."""
    predicted: float
    """Signal to noise of the model's output in dB, as the sum over groups says."""
    measured: float
    """The same of the model with all choices, measured on the data; of a simulation."""
    drop: float | None
    """How much worse the metric is than that of the float model; None without one."""
    interval: tuple[float, float] | None
    """The interval of ``drop``, of the same items in both models."""
    decided: bool
    """False: ``max_drop`` lies inside the interval, so that the data cannot tell."""
    reached: bool
    """False: not even the best point that can be chosen keeps to ``max_drop``."""
    missing: tuple[str, ...]
    """Groups and choices that an interrupt left unknown."""
    excluded: tuple[Any, ...]
    """Choices that the back end cannot run, each with its group and the reason."""
    gap: float
    """How much less predicted noise there may be at most within the budget; 0: it is the least."""
    corrected: bool
    """True: noise was estimated anew around the point that was found first, since it was off by more than 3 dB."""
    notes: tuple[str, ...]
    """Sentences below the table."""
    candidates: tuple[Choice, ...]
    """What there was to choose from."""
    all_at_8: Cost
    """What all groups at 8 bits cost."""
    config: QConfigMapping
    """The configuration that the model was prepared by."""
    addresses: Mapping[str, tuple[Address, ...]]
    """Root of a unit -> by what rules its operators are meant."""
    rules: tuple[Mapping[str, tuple[tuple[str, QConfig | None], ...]], ...]
    """Of each group: name of a choice -> roots of its units, each with its configuration; None: float."""

    def mapping(self, point: PrecisionPoint | int | None = None) -> QConfigMapping:
        """Return the configuration of a point: that of the model, and a rule for each operator that has other bits.

        Args:
            point: One of ``pareto``, or its index there; None: the point that was found.

        Raises:
            InputError: it is none of these.
        """
        chosen = self._point(point)
        mapping = QConfigMapping.from_dict(self.config.to_dict())
        for rules, choice in zip(self.rules, chosen.choices, strict=True):
            for root, qconfig in rules[choice]:
                for address in self.addresses[root]:
                    address.set(mapping, qconfig)
        return mapping

    def _point(self, point: PrecisionPoint | int | None) -> PrecisionPoint:
        if point is None:
            return self.point
        if isinstance(point, PrecisionPoint) and len(point.choices) == len(self.rules):
            return point
        if isinstance(point, int) and not isinstance(point, bool) and -len(self.pareto) <= point < len(self.pareto):
            return self.pareto[point]
        raise InputError(
            "this is no point of the search", got=repr(point), expected=f"an index from 0 to {len(self.pareto) - 1}"
        )

    def _cells(self, rows: Sequence[PrecisionRow]) -> Iterable[Sequence[Any]]:
        for row in rows:
            bits = ("–" if each is None else each for each in (row.weight, row.activation))
            noise = "?" if math.isnan(row.noise) else f"{row.noise:.3g}"
            size = in_words("size", row.size) if row.size else "–"
            yield shortened(row.name, _NAME), row.choice, *bits, noise, size, in_words("bitops", row.bitops)

    def _sentences(self) -> list[str]:
        parts = []
        for name in ("size", "bitops", "latency", "activations"):
            if whole := self.all_at_8.of(name):
                value = self.point.cost.of(name)
                parts.append(f"{name} {in_words(name, value)} ({value / whole:.3g} of all at 8 bits)")
        lines = ["found: " + ", ".join(parts)]
        lines.append(f"SQNR predicted {self.predicted:.1f} dB, measured {self.measured:.1f} dB")
        if self.drop is not None and self.interval is not None:
            low, high = self.interval
            lines.append(f"the metric falls by {self.drop:.4g} (interval {low:.4g} to {high:.4g})")
        return [*lines, *self.notes, *self._front()]

    def _front(self) -> list[str]:
        count = len(self.pareto)
        places = sorted({round(i * (count - 1) / (FRONT_SHOWN - 1)) for i in range(FRONT_SHOWN)}) if count > 1 else [0]
        rows = [
            (
                place,
                in_words("size", self.pareto[place].cost.size),
                in_words("bitops", self.pareto[place].cost.bitops),
                f"{self.pareto[place].part:.3f}",
                f"{self.pareto[place].sqnr:.1f}",
            )
            for place in places
        ]
        text = format_rows(rows, ("point", "size", "bitops", "part of 8 bits", "predicted dB"), "rrrrr")
        return [f"front, {count} points:", *text.splitlines()]
