"""Finds what looks wrong after calibration, and says what to do about it: from what was written down, in no time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule

from fxquant.calibration.channel_extremes import ChannelExtremes
from fxquant.calibration.joined_ranges import Part, inequality, unequal
from fxquant.calibration.module_paths import ModulePaths, module_paths_of
from fxquant.calibration.range_history import FEWEST_BATCHES, TOLERANCE, extremes_of
from fxquant.calibration.statistics import CalibrationStatistics
from fxquant.errors import listing, warn
from fxquant.observers.histogram import HistogramObserver
from fxquant.observers.qparams import VALUES_TOO_SMALL, VALUES_TOO_SMALL_HINT, below_smallest_scale
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import TensorRef

Kind = Literal["unseen", "NaN, inf", "constant", "unequal", "outlier", "dead", "tiny", "moving"]

OUTLIER = 32.0
"""How many times the range of the median channel the whole range may be: then 8 of 256 steps are left for that one."""
FEWEST_CHANNELS = 4
"""Of fewer there is no usual one."""
FEWEST_VALUES = 128
"""Values that must all be the same before a channel is called dead, or a tensor is warned of as constant."""
MANY_DEAD = 0.5
"""Part of the channels: fewer dead ones are shown in the report, and not warned of."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about one observed value that its user should know."""

    name: str
    """Of the value."""
    kind: Kind
    text: str
    """One line: what was found, in figures."""
    harm: float
    """How bad it is among problems of its kind: the larger the worse."""
    warned: bool = True
    """Whether ``calibrate`` warns of it."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Holds what ``calibrate`` says of all problems of one kind."""

    what: str
    hint: str


ADVICE: Mapping[Kind, Advice] = {
    "tiny": Advice(VALUES_TOO_SMALL, VALUES_TOO_SMALL_HINT),
    "NaN, inf": Advice(
        "calibration met values that are inf or NaN; the qparams were chosen from the others",
        "look at the batch that is named, and at the value named first: the others may follow from it. Quantized, "
        "infinity is the last step and NaN the first: set_module_name(name, None) keeps an operator that needs them "
        "(a mask of -inf, say) in float",
    ),
    "constant": Advice(
        "calibration saw one and the same number throughout",
        "data that never varies here, or weights of zero before it; a range of one number holds no other: calibrate "
        "with data that reaches this value, or keep its module in float with set_module_name(name, None)",
    ),
    "unequal": Advice(
        "values of very different size are joined with the same qparams, which leaves few steps for the smaller ones",
        "multiply the smaller ones before they are joined, and divide in the layer that reads them; or "
        "set_module_name(name, None) keeps the layer that reads the join in float, and so the join",
    ),
    "outlier": Advice(
        "one channel reaches so far beyond the others that few steps of the range are left for these",
        "look at the weights and the batch norm before it; set_module_name(name, None) keeps the module in float, "
        "HistogramObserver or PercentileObserver clip what is rare",
    ),
    "dead": Advice(
        "most channels never changed",
        "data that does not reach them (how is it normalized?), or a layer that training has lost",
    ),
    "moving": Advice(
        "the ranges have not settled: the second half of the calibration data still widened them",
        "calibrate with more batches; calibrate(..., until_stable=True) goes on until ranges have settled",
    ),
}
"""In the order of severity. What was never observed is an error of ``convert``, not a warning."""

SEVERITY: tuple[Kind, ...] = ("unseen", *ADVICE)


def find_problems(statistics: CalibrationStatistics, observers: Mapping[str, Any]) -> dict[str, Problem]:
    """Return the worst problem of each observed value that has one, by its name.

    Args:
        statistics: What was written down.
        observers: Name of a value -> its observer.
    """
    history, inside = statistics.history, [observers[name] for name in statistics.history.names]
    at, ends = history.table(inside)
    settled = history.is_stable(inside).tolist()
    found = {}
    for index, name in enumerate(history.names):
        observer, channels = observers[name], statistics.channels_of(name)
        keeps_extremes = extremes_of(observer) is not None  # else only its qparams are known
        may_vary = keeps_extremes and name in statistics.from_inputs
        course = [(int(batch), float(low), float(high)) for batch, (low, high) in zip(at, ends[:, index], strict=True)]
        checks = (
            _nonfinite(name, observer, int(history.first_nonfinite[index])),
            _unseen(name, observer) if keeps_extremes else None,
            _tiny(name, observer),
            _constant(name, observer, int(history.batches)) if may_vary else None,
            _unequal(name, statistics),
            # Beside others with the same qparams, a value may well be small.
            _outlier(name, observer, channels, _width(*course[-1][1:])) if name in statistics.channels else None,
            _dead(name, channels),
            None if settled[index] else _moving(name, course, int(history.batches)),
        )
        problem = next((each for each in checks if each is not None), None)
        if problem is not None:
            found[name] = problem
    return found


def by_severity(problems: Sequence[Problem], order: Mapping[str, int]) -> list[Problem]:
    """Return the worst first; of equals, what comes first in the graph."""

    def rank(problem: Problem) -> tuple[int, float, int]:
        few = problem.kind == "dead" and not problem.warned  # most networks have some, and lose nothing by them
        return len(SEVERITY) if few else SEVERITY.index(problem.kind), -problem.harm, order[problem.name]

    return sorted(problems, key=rank)


def warn_of_problems(
    found: Mapping[str, Problem], places: Mapping[TensorRef, ModulePaths], known: set[tuple[str, str]]
) -> None:
    """Warn once of each kind of problem, with a line for each value, the worst first; what is ``known`` is left out.

    Args:
        found: What ``find_problems`` gave, in the order of the graph.
        places: How each value is called.
        known: (name, kind) of what was warned of before; what is new is added.
    """
    problems = by_severity(list(found.values()), {name: index for index, name in enumerate(found)})
    for kind, advice in ADVICE.items():
        new = [each for each in problems if each.kind == kind and each.warned and (each.name, kind) not in known]
        known.update((each.name, kind) for each in new)
        if new:
            lines = [f"{places[TensorRef(each.name)]}: {each.text}" for each in new]
            warn(advice.what, got=listing(lines), hint=advice.hint)


def warn_of_unequal_joins(joins: Mapping[str, Sequence[Part]], gm: GraphModule, plan: QuantPlan) -> None:
    """Return the same for a model that was trained, of its joins alone: it has no calibration.

    Args:
        joins: Name of each join -> what it takes.
        gm: The float graph.
        plan: Its plan.
    """
    places = module_paths_of(map(TensorRef, joins), gm, plan)
    worst_first = sorted(joins.items(), key=lambda join: -inequality(join[1]))
    lines = [f"{places[TensorRef(name)]}: {text}" for name, parts in worst_first if (text := unequal(parts))]
    if lines:
        warn(ADVICE["unequal"].what, got=listing(lines), hint=ADVICE["unequal"].hint)


def _unseen(name: str, observer: Any) -> Problem | None:
    if observer.min_val.numel() and bool((observer.min_val <= observer.max_val).any()):
        return None
    return Problem(name, "unseen", "no batch held a finite number", 0.0, warned=False)


def _nonfinite(name: str, observer: Any, batch: int) -> Problem | None:
    count = int(getattr(observer, "nonfinite_count", 0))
    if not count:
        return None
    since = f", first in batch {batch}" if batch >= 0 else ""
    return Problem(name, "NaN, inf", f"{count} values{since}", -float(batch))


def _tiny(name: str, observer: Any) -> Problem | None:
    lost = below_smallest_scale(observer)
    return None if lost is None else Problem(name, "tiny", lost.text, lost.unused)


def _constant(name: str, observer: Any, batches: int) -> Problem | None:
    if bool((observer.min_val == observer.max_val).all()):
        text, counts = f"always {float(observer.min_val.flatten()[0]):g}", getattr(observer, "counts", None)
        zeros = not bool(observer.min_val.any())  # these leave nothing of any layer, however few they are
        few = not zeros and (batches == 1 or (counts is not None and int(counts.sum()) < FEWEST_VALUES))
        return Problem(name, "constant", text, 0.0, warned=not few)
    return None


def _unequal(name: str, statistics: CalibrationStatistics) -> Problem | None:
    """Find the worst of the joins whose qparams a value has."""
    parts = [statistics.parts_of(join) for join in statistics.joins_on(name)]
    worst = max(parts, key=inequality, default=())
    text = unequal(worst)
    return Problem(name, "unequal", text, inequality(worst)) if text else None


def _outlier(name: str, observer: Any, channels: ChannelExtremes | None, width: float) -> Problem | None:
    if channels is None or channels.low.numel() < FEWEST_CHANNELS:
        return None
    widths = _widths(channels)
    alive = widths[widths.isfinite() & (channels.low < channels.high)]
    usual = float(alive.median()) if len(alive) else 0.0
    if usual > 0 and width > OUTLIER * usual and isinstance(observer, HistogramObserver):
        lows, highs = observer.chosen_range()  # a search, so only where there is a suspicion
        width = _width(float(lows.min()), float(highs.max()))
    if usual == 0 or width <= OUTLIER * usual:
        return None
    worst = int(widths.nan_to_num(posinf=0.0).argmax())
    low, high = float(channels.low[worst]), float(channels.high[worst])
    end = low if -low > high else high
    who = (
        f"channel {worst} reaches {end:.4g}" if float(widths[worst]) > OUTLIER / 2 * usual else "a few values reach on"
    )
    text = f"{who}, the median channel spans {usual:.3g} of {width:.4g}"
    return Problem(name, "outlier", text, width / usual)


def _dead(name: str, channels: ChannelExtremes | None) -> Problem | None:
    dead = dead_channels(channels)
    if channels is None or not dead:
        return None
    total, first = channels.low.numel(), ", ".join(map(str, dead[:3]))
    text = f"{len(dead)} of {total} channels never changed ({first}{', …' if len(dead) > 3 else ''})"
    return Problem(name, "dead", text, len(dead) / total, warned=len(dead) > MANY_DEAD * total)


def dead_channels(channels: ChannelExtremes | None) -> list[int]:
    """Return the channels that held one and the same value in every batch; none while too little was seen."""
    if channels is None or int(channels.count) < FEWEST_VALUES:
        return []
    return torch.nonzero(channels.constant()).flatten().tolist()


def _moving(name: str, course: Sequence[tuple[int, float, float]], batches: int) -> Problem | None:
    low, high = course[-1][1:]
    if batches < FEWEST_BATCHES or low > high:
        return None
    moves = [(max(abs(a - low), abs(b - high)) / _width(low, high), at, a, b) for at, a, b in course[:-1]]
    beyond = [move for move in moves if move[0] > TOLERANCE] or [max(moves)]  # the history has judged in float32
    harm, at, a, b = beyond[-1]
    before = f"[{a:.4g}, {b:.4g}]" if a <= b else "nothing"
    text = f"{before} after {at} of {batches} batches, then [{low:.4g}, {high:.4g}]"
    return Problem(name, "moving", text, harm)


def _widths(channels: ChannelExtremes) -> Tensor:
    return channels.high.clamp(min=0) - channels.low.clamp(max=0)


def _width(low: float, high: float) -> float:
    return max(high, 0.0) - min(low, 0.0)
