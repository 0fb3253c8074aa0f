"""Reports what calibration found, value by value, the worst first: ranges, clipped values, outliers, problems."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from fxquant.calibration.clipping import USUAL, Clipping, clipping_of
from fxquant.calibration.module_paths import ModulePaths, module_paths_of
from fxquant.calibration.problems import OUTLIER, Problem, by_severity, dead_channels, find_problems
from fxquant.calibration.range_history import extremes_of
from fxquant.calibration.statistics import CalibrationStatistics
from fxquant.errors import CalibrationError, UnknownNameError
from fxquant.fake_quantize.base import observer_in
from fxquant.graph.text_table import format_rows, shortened
from fxquant.observers.qparams import quantization_range
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import TensorRef
from fxquant.registry import did_you_mean

WIDTH = 100
"""Columns of a printed table."""
NARROWEST = 16
"""Columns of the first of them, at least."""
ROWS = 60
"""That are printed; all are in ``rows``."""
SENTENCES = 10
"""Problems that are spelled out below the table."""

HEAD = ("value", "seen", "quantized", "settled", "clipped", "outliers", "dead", "problem")
LEGEND = (
    "settled: after how many batches the range came to stay; ?: too few followed to be sure; no: it did\n"
    "not. clipped, outliers: of all values. dead: channels that never changed in the batches that were\n"
    "looked at. -: not counted by this observer."
)


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """Holds what calibration found of one observed value."""

    name: str
    """Of the value: ``prepared.observers[name]`` has measured it."""
    place: ModulePaths
    """The name, and the modules that make and read the value."""
    low: float
    """Smallest float value seen; inf if there was none, NaN if the observer keeps no ``min_val``."""
    high: float
    """Largest value seen; -inf if there was none, NaN if the observer keeps no ``max_val``."""
    qparams: tuple[float, float] | None
    """The quantization range that was chosen; the widest of all channels."""
    course: tuple[tuple[int, float, float], ...]
    """Number of batches, lower end, upper end: the range as it grew. Of a histogram, without 0.01 % at each end."""
    settled_after: int
    """Batches after which no end moved by more than 5 % of the width; 0 if nothing was seen."""
    settled: bool
    """Whether that was so for the second half of at least eight batches."""
    shares: Clipping | None
    """Clipped values and outliers; None if the observer counts none."""
    channels: int
    """How many channels were looked at; 0 if the value has none that a layer knows."""
    dead: tuple[int, ...]
    """Those that held one and the same value in the first sixteen batches, and in every eighth after them."""
    nonfinite: int
    """NaN and infinite values, which were left out."""
    first_nonfinite: int
    """The batch that first held one, counted from 0; -1 if none did."""
    constant: bool
    """Whether all values were the same."""
    problem: Problem | None
    """The worst thing about it."""


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """Lists what calibration found, the worst first. Print it, or read ``rows``."""

    rows: tuple[CalibrationRow, ...]
    batches: int
    """That were observed."""

    def __iter__(self) -> Iterator[CalibrationRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> CalibrationRow:
        """Return the row of a value, by its name.

        Raises:
            UnknownNameError: there is none; the message shows the nearest.
        """
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            raise UnknownNameError("no value of that name was observed", got=repr(name), hint=did_you_mean(name, rows))
        return rows[name]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the worst of each value that has one, the worst first."""
        return tuple(row.problem for row in self.rows if row.problem is not None)

    @property
    def settled(self) -> bool:
        """Tell whether the ranges of all values no longer change from batch to batch."""
        return all(row.settled for row in self.rows)

    def worst(self, count: int = 3) -> tuple[CalibrationRow, ...]:
        """Return the first rows."""
        return self.rows[:count]

    def __str__(self) -> str:
        table = [_cells(row, self.batches) for row in self.rows[:ROWS]]
        heads = [f"{head}  " for head in HEAD]  # tabulate leaves as much room
        widths = [max(map(len, column)) for column in zip(heads, *table, strict=True)]
        room = max(NARROWEST, WIDTH - sum(widths[1:]) - 2 * len(widths[1:]))
        shown = [(shortened(cells[0], room), *cells[1:]) for cells in table]
        text = format_rows(shown, HEAD, "lrrrrrrl")
        more = [f"and {len(self.rows) - ROWS} more"] if len(self.rows) > ROWS else []
        sentences = [f"{row.problem.kind}: {row.place}: {row.problem.text}" for row in self.rows if row.problem]
        return "\n".join([text, *more, LEGEND, self._summary(), *sentences[:SENTENCES]])

    def _repr_html_(self) -> str:
        table = [(str(row.place), *_cells(row, self.batches)[1:]) for row in self.rows]
        html = format_rows(table, HEAD, form="html")
        return f"<p>{self._summary()}</p>{html}"

    def _summary(self) -> str:
        settled = sum(row.settled for row in self.rows)
        have = f"{settled} of {len(self.rows)} ranges have settled"
        return f"{self.batches} batches: {have}, {len(self.problems)} values have a problem."


def calibration_report(
    gm: GraphModule, plan: QuantPlan, observers: Mapping[str, Any], statistics: CalibrationStatistics
) -> CalibrationReport:
    """Put together what observers remember and what was written down beside them.

    Args:
        gm: The prepared float graph.
        plan: Its plan.
        observers: Name of a value -> its observer, or a fake-quantize module around it.
        statistics: Of the same plan.
    """
    found = find_problems(statistics, {name: observer_in(made) for name, made in observers.items()})
    places = module_paths_of(statistics.refs, gm, plan)
    inside = [observer_in(observers[ref.name]) for ref in statistics.refs]
    history = _History(
        *statistics.history.table(inside),
        statistics.history.stable_after(inside).tolist(),
        statistics.history.is_stable(inside).tolist(),
    )
    rows = [
        _row(index, ref, places[ref], observers, statistics, history, found.get(ref.name))
        for index, ref in enumerate(statistics.refs)
    ]
    position = {row.name: index for index, row in enumerate(rows)}
    problems = [row.problem for row in rows if row.problem is not None]
    first = [problem.name for problem in by_severity(problems, position)]
    rest = sorted((row for row in rows if row.problem is None), key=_reach, reverse=True)
    ordered = (*(rows[position[name]] for name in first), *rest)
    return CalibrationReport(tuple(ordered), int(statistics.history.batches))


@dataclass(frozen=True, slots=True)
class _History:
    at: Tensor
    ends: Tensor
    settled_after: list[int]
    settled: list[bool]

    def course(self, index: int) -> tuple[tuple[int, float, float], ...]:
        rows = zip(self.at.tolist(), self.ends[:, index].tolist(), strict=True)
        return tuple((at, low, high) for at, (low, high) in rows)


def _row(
    index: int,
    ref: TensorRef,
    place: ModulePaths,
    observers: Mapping[str, Any],
    statistics: CalibrationStatistics,
    history: _History,
    problem: Problem | None,
) -> CalibrationRow:
    observer = observer_in(observers[ref.name])
    constant, ends = False, (math.nan, math.nan)
    if (extremes := extremes_of(observer)) is not None:
        low, high = extremes
        constant = low.numel() > 0 and bool((low == high).all())
        ends = (float(low.min()), float(high.max())) if low.numel() else (math.inf, -math.inf)
    channels = statistics.channels_of(ref.name)
    try:
        qparams = observers[ref.name].qparams()
    except CalibrationError:
        qparams = None
    shares = None if qparams is None else clipping_of(observer, qparams)
    return CalibrationRow(
        name=ref.name,
        place=place,
        low=ends[0],
        high=ends[1],
        qparams=None if qparams is None else quantization_range(qparams),
        course=history.course(index),
        settled_after=history.settled_after[index],
        settled=history.settled[index],
        shares=shares,
        channels=0 if channels is None else channels.low.numel(),
        dead=tuple(dead_channels(channels)),
        nonfinite=int(getattr(observer, "nonfinite_count", 0)),
        first_nonfinite=int(statistics.history.first_nonfinite[index]),
        constant=constant,
        problem=problem or _rare(ref.name, shares, ends),
    )


def _rare(name: str, shares: Clipping | None, ends: tuple[float, float]) -> Problem | None:
    """Find, of values that a histogram has counted, those that lie far out, and those that may have been clipped."""
    if shares is None or shares.reach <= OUTLIER:
        return None
    end = ends[0] if -ends[0] > ends[1] else ends[1]
    count = max(1, round(shares.outliers * shares.values))
    usual = f"{100 * USUAL:g} % of all stay within {abs(end) / shares.reach:.3g}"
    text = f"{count} of {shares.values} values are far out, up to {end:.4g}: {usual}"
    return Problem(name, "outlier", text, 0.0, warned=False)


def _reach(row: CalibrationRow) -> float:
    return row.shares.reach if row.shares is not None and row.shares.outliers else 0.0


def _cells(row: CalibrationRow, batches: int) -> tuple[str, ...]:
    seen = "-" if math.isnan(row.low) else f"{row.low:.3g}, {row.high:.3g}" if row.low <= row.high else "nothing"
    qparams = "none" if row.qparams is None else f"{row.qparams[0]:.3g}, {row.qparams[1]:.3g}"
    shares = ("-", "-") if row.shares is None else (_percent(row.shares.clipped), _percent(row.shares.outliers))
    dead = f"{len(row.dead)}/{row.channels}" if row.channels else "-"
    settled = "no" if row.settled_after > batches / 2 else f"{row.settled_after}"
    if batches and not row.settled and row.settled_after <= batches / 2:
        settled = f"{row.settled_after}?"
    return row.place.short, seen, qparams, settled, *shares, dead, row.problem.kind if row.problem else ""


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:.2g} %" if share >= 1e-6 else "<0.0001 %"
