"""Finds the cheapest point of the front whose loss is allowed, with few evaluations, and repairs it a little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fxquant.errors import warn
from fxquant.measure.paired import PairedDifference
from fxquant.plan.precision import Choice
from fxquant.precision.evaluation import Measured
from fxquant.precision.options import Options

REPAIRS = 5
"""Single changes that are tried once the front is searched."""


@dataclass(frozen=True, slots=True)
class Found:
    """The choice that was found, and what was measured of it."""

    chosen: list[Choice]
    measured: Measured
    reached: bool


def loss_of(measured: Measured) -> PairedDifference:
    """Return the loss of what was measured with a metric."""
    assert measured.loss is not None  # max_drop asks for a metric
    return measured.loss


def cheapest_within(options: Options, max_drop: float, measure: Callable[[Sequence[Choice]], Measured]) -> Found:
    """Search the front by halves: the loss falls, all in all, from its cheapest point to its last.

    Then the groups whose next cheaper choice saves most for its noise are tried one by one, and what keeps to the limit
    stays. If not even the last point keeps to it, the point of least loss that was measured is the answer.

    Args:
        options: With the noise of all choices.
        max_drop: The most that the metric may fall.
        measure: Runs the model with the choices of all groups.
    """
    front = options.front()
    known: dict[int, Measured] = {}

    def loss_at(place: int) -> float:
        if place not in known:
            known[place] = measure(front[place])
        return loss_of(known[place]).difference

    low, high = 0, len(front) - 1  # the answer lies in [low, high]
    if loss_at(high) > max_drop:
        best = min(known, key=lambda place: (loss_at(place), place))
        warn(
            "no point that can be chosen keeps to max_drop; the best one is the answer",
            got=f"the metric falls by {loss_at(best):.4g}",
            expected=f"at most {max_drop:g}",
            hint='more candidates, "float" among them, or more data; equalize and adaround lower the noise',
        )
        return Found(front[best], known[best], False)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if loss_at(middle) <= max_drop else (middle + 1, high)
    return _repaired(Found(front[high], known[high], True), options, max_drop, measure)


def _repaired(
    found: Found, options: Options, max_drop: float, measure: Callable[[Sequence[Choice]], Measured]
) -> Found:
    """Try single cheaper choices, the ones that save most for the noise that they add first."""
    tried: set[tuple[int, str]] = set()
    for _ in range(REPAIRS):
        change = _next_change(found.chosen, options, tried)
        if change is None:
            break
        place, choice = change
        tried.add((place, choice.name))
        chosen = [*found.chosen[:place], choice, *found.chosen[place + 1 :]]
        measured = measure(chosen)
        if loss_of(measured).difference <= max_drop:
            found = Found(chosen, measured, True)
    return found


def _next_change(chosen: Sequence[Choice], options: Options, tried: set[tuple[int, str]]) -> tuple[int, Choice] | None:
    """Return the place and the choice that saves most cost for its noise; None where nothing cheaper is left."""
    whole = options.all_at_8
    changes = []
    for place, now in enumerate(chosen):
        cost = options.part(options.cost(place, now), whole)
        for choice in options.allowed[place]:
            saved = cost - options.part(options.cost(place, choice), whole)
            if saved > 0 and (place, choice.name) not in tried:
                added = max(0.0, options.noise[place][choice.name] - options.noise[place][now.name])
                changes.append((added / saved, place, choice.name, choice))
    return None if not changes else min(changes, key=lambda each: each[:3])[1::2]
