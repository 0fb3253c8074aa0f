"""Results of ``compare``, as rows and as a table: the layer that does most harm comes first."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fxquant.errors import UnknownNameError
from fxquant.graph.text_table import PrintedTable, short_line, shortened
from fxquant.measure.noise import Deviation, in_words
from fxquant.registry import did_you_mean

WIDTH = 100
"""No line of the table is wider."""
SHOWN = 20
"""Rows that are printed; all of them are in ``rows``."""
TOLD = 5
"""Faults that are told below the table; all of them are in ``rows``."""
_NAME, _LINE = 30, 24
"""Widths of the columns of paths and of lines of source."""

LEGEND = """\
lost: of the signal, by what the layer itself does (of the average channel, or of all if more).
dB, signal to noise against the float model: alone, on the float model's values; here, with all
that came before; weight, of the weight. largest: the largest error alone, a float value."""


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """One unit of the quantized model, or one value that is quantized and that no unit makes."""

    unit: str
    """Name of the node: the root of the unit, or the value."""
    name: str
    """What to call it in a message: the path of a layer; of any other value also which one it is."""
    module: str
    """Path of the user's module, or of the weight that a function took; empty at top level."""
    pattern: str
    """Name of the pattern; ``quantize`` for a value that no unit makes, an input of the model say."""
    line: str
    """``path:line`` of the user's code."""
    place: int
    """Where it runs: 0 is the first of all."""
    isolated: Deviation
    """What the unit itself adds: on the float model's values, rounded to its qparams, against what float makes of
    these. So each rounding counts once: that of a value where it is made."""
    accumulated: Deviation
    """The quantized model, run from its inputs to this point, against the float model."""
    weight: Deviation | None
    """The quantized weight, batch norm folded in, against that of the float model; None where there is none, or where
    the two cannot be compared."""
    fault: str = ""
    """What rounding does not explain: another weight, other qparams than its readers take. Such rows come first."""
    cause: str = ""
    """What makes the noise, in words."""
    overrun: float = 0.0
    """Noise over signal, of all channels together: tells rows apart that lose everything."""

    @property
    def harm(self) -> float:
        """Return the share of the signal that the unit itself loses, 0 to 1."""
        return self.isolated.lost


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A unit of the quantized model that could not be compared."""

    unit: str
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison(PrintedTable[LayerComparison]):
    """A quantized model beside its float model, layer by layer. Print it, or read ``rows``."""

    _HEAD = ("layer", "lost", "alone", "here", "weight", "largest", "line")
    _ALIGN = "lrrrrrl"
    _SHOWN = SHOWN
    _LEGEND = LEGEND

    rows: tuple[LayerComparison, ...]
    """Those with a fault first, then by harm, the worst first."""
    output: Deviation
    """What the model returns; ``sqnr`` is NaN where that is no float values, or zeros alone."""
    batches: int
    unmatched: tuple[Unmatched, ...] = ()
    returns_numbers: bool = True
    """Whether the model returns float values at all."""

    def worst(self, count: int = 3) -> tuple[LayerComparison, ...]:
        """Return the layers that do most harm, the worst first."""
        return self.rows[:count]

    def __getitem__(self, name: str) -> LayerComparison:
        """Return the row of a module's path, or of a node.

        Raises:
            UnknownNameError: there is none; the message shows the nearest.
        """
        for row in self.rows:
            if name in (row.name, row.module, row.unit):
                return row
        known = [row.name for row in self.rows]
        raise UnknownNameError("no layer of that name was compared", got=repr(name), hint=did_you_mean(name, known))

    def _cells(self, rows: Sequence[LayerComparison]) -> Iterable[tuple[str, ...]]:
        return map(_cells, rows)

    def _left_out(self, rows: Sequence[LayerComparison]) -> str:
        return f"and {len(rows)} more, each of which loses no more than these"

    def _sentences(self) -> list[str]:
        batches = f"{self.batches} batch{'' if self.batches == 1 else 'es'}"
        lines = [f"{len(self)} layers, {batches}; what the model returns: {self._result()}."]
        faults = [row for row in self.rows if row.fault]
        for row in faults[:TOLD] or self.rows[:1]:
            lines += textwrap.wrap(f"{row.name}: {row.fault or row.cause}", WIDTH, subsequent_indent="    ")
        for each in self.unmatched:
            lines += textwrap.wrap(f"not compared: {each.unit}: {each.reason}", WIDTH, subsequent_indent="    ")
        if len(faults) > TOLD:
            text = (
                f"{len(faults)} layers differ by more than rounding explains; the first {TOLD} are named. Was it "
                "trained since? compare takes what prepare_qat gave as float model, too."
            )
            lines += textwrap.wrap(text, WIDTH, subsequent_indent="    ")
        return lines

    def _result(self) -> str:
        if math.isnan(self.output.sqnr):
            return "zeros alone" if self.returns_numbers else "no float values"
        return f"{in_words(self.output.sqnr)} dB"


def sorted_by_harm(rows: list[LayerComparison]) -> tuple[LayerComparison, ...]:
    """Faults first, then by what is lost; of rows that lose as much, the one with more noise, then the earlier one."""
    return tuple(sorted(rows, key=lambda row: (not row.fault, -row.harm, -row.overrun, row.place)))


def _cells(row: LayerComparison) -> tuple[str, ...]:
    return (
        shortened(row.name, _NAME),
        f"{100 * row.harm:.1f} %",
        in_words(row.isolated.sqnr),
        in_words(row.accumulated.sqnr),
        "" if row.weight is None else in_words(row.weight.sqnr),
        f"{row.isolated.largest:.3g}",
        shortened(short_line(row.line), _LINE),
    )
