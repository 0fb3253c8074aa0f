"""What can be chosen for each group, at what cost and with what noise; and the choices that come of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fxquant.backends.base import Backend
from fxquant.errors import InputError, listing
from fxquant.plan.precision import RESOURCES, Choice, Cost
from fxquant.precision.budget import Budget, unreachable
from fxquant.precision.groups import PrecisionGroup
from fxquant.precision.knapsack import Option, Solution, solve
from fxquant.precision.simulations import Simulations

BYTE = 8
LARGEST = 1e30
"""Noise over signal of an output that is not finite: such a choice is made only where no other can be."""
EIGHT = Choice("W8A8", BYTE, BYTE)
PARTS = ("size", "bitops", "activations")
"""The resources that are known without a measurement: the front counts the mean of their parts of all at 8 bits."""
_WHOLE = {"size": 8.0, "bitops": 1.0, "latency": 1e9, "activations": 8.0}
"""What costs are multiplied by to be whole numbers: bits, operations, nanoseconds."""

_Point = tuple[float, float, Choice]
"""Cost, noise and the choice that has them."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """A choice that a group does not have."""

    group: str
    choice: str
    reason: str


@dataclass(slots=True)
class Options:
    """The choices of all groups, with their costs and, once they are measured, their noise.

    Args:
        groups: Those that choose.
        choices: The candidates.
        backend: Says what a choice costs.
        latencies: Root of a unit -> seconds in int8 and in float; empty where nothing was measured.
    """

    groups: Sequence[PrecisionGroup]
    choices: Sequence[Choice]
    backend: Backend
    latencies: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    allowed: list[list[Choice]] = field(init=False)
    excluded: list[Excluded] = field(init=False)
    noise: list[dict[str, float]] = field(init=False)
    """Of each group: name of a choice -> noise over signal of the model's output; what is missing was not measured."""

    def __post_init__(self) -> None:
        self.allowed = [list(self.choices) for _ in self.groups]
        self.excluded = []
        self.noise = [{each.name: 0.0 for each in self.choices if each.is_float} for _ in self.groups]

    def exclude(self, simulations: Simulations) -> None:
        """Leave out the choices that the back end refuses for a unit of a group.

        Raises:
            InputError: no choice is left to a group.
        """
        for group, allowed in zip(self.groups, self.allowed, strict=True):
            for choice in list(allowed):
                reasons = (simulations.why_not(unit, choice) for unit in group.units)
                if reason := next(filter(None, reasons), ""):
                    allowed.remove(choice)
                    self.excluded.append(Excluded(group.name, choice.name, reason))
            if not allowed:
                reasons_ = [f"{each.choice}: {each.reason}" for each in self.excluded if each.group == group.name]
                raise InputError(
                    "no candidate can be run here", at=group.name, got=listing(reasons_), hint='add "float"'
                )

    def cost(self, place: int, choice: Choice) -> Cost:
        """Return what a choice costs for the group at a place."""
        group = self.groups[place]
        total = Cost()
        for unit, work in zip(group.units, group.work, strict=True):
            total += self.backend.cost(work, choice)
            if unit.root in self.latencies:
                total += Cost(
                    latency=self.latencies[unit.root][0 if max(choice.weight_bits, choice.activation_bits) <= 8 else 1]
                )
        return total

    def total(self, chosen: Sequence[Choice]) -> Cost:
        """Return what the choices of all groups cost together."""
        return sum((self.cost(place, choice) for place, choice in enumerate(chosen)), start=Cost())

    def predicted(self, chosen: Sequence[Choice]) -> float:
        """Return the sum of the noise of the choices of all groups."""
        return sum(self.noise[place][choice.name] for place, choice in enumerate(chosen))

    @property
    def all_at_8(self) -> Cost:
        """Return what all groups at 8 bits cost."""
        return self.total([EIGHT] * len(self.groups))

    @property
    def left_out(self) -> list[str]:
        """Return a sentence for each choice that is excluded and the reason for it."""
        counts = Counter((each.choice, each.reason) for each in self.excluded)
        total = len(self.groups)
        return [f"{name} is left out for {count} of {total} groups: {why}" for (name, why), count in counts.items()]

    def assume_missing(self) -> tuple[str, ...]:
        """Give the choices that were not measured the noise that their bits say.

        One more bit halves the step, and so quarters the noise. The noise that was measured of a group, or else the
        most of all groups, says what that is a quarter of.

        Returns:
            The groups and choices.
        """
        scales = [
            max((noise[each.name] / _step_power(each) for each in allowed if _is_known(each, noise)), default=None)
            for allowed, noise in zip(self.allowed, self.noise, strict=True)
        ]
        largest = max((scale for scale in scales if scale is not None), default=1.0)
        missing = []
        for group, allowed, noise, scale in zip(self.groups, self.allowed, self.noise, scales, strict=True):
            for choice in allowed:
                if choice.name not in noise:
                    noise[choice.name] = (largest if scale is None else scale) * _step_power(choice)
                    missing.append(f"{group.name} {choice.name}")
        return tuple(missing)

    def within(self, budget: Budget) -> tuple[list[Choice], float]:
        """Return the choices of least noise that keep to a budget, and by how much less noise there may be at most.

        What the budget does not name stays within what all units at 8 bits cost, if it can.

        Raises:
            InputError: no choice keeps to the budget.
        """
        named, whole = budget.names, self.all_at_8
        least = self._check(budget)
        limits = {name: budget.limit(name, whole) for name in named}
        others = {name: max(whole.of(name), least.of(name)) for name in PARTS if name not in named}
        found = self._solve({**limits, **others}) or self._solve(limits)
        if found is None:
            raise unreachable(budget, named, least, whole, self.left_out)
        return [self.allowed[place][index] for place, index in enumerate(found.chosen)], found.gap

    def check_reachable(self, budget: Budget) -> None:
        """Refuse a budget below what the cheapest choices come to, before anything is measured.

        Raises:
            InputError: it is one; the message has the least that can be reached.
        """
        self._check(budget)

    def _check(self, budget: Budget) -> Cost:
        least, whole = self._least(), self.all_at_8
        if missed := [name for name in budget.names if budget.limit(name, whole) < least.of(name) * (1 - 1e-9)]:
            raise unreachable(budget, missed, least, whole, self.left_out)
        return least

    def _least(self) -> Cost:
        costs = [[self.cost(place, choice) for choice in choices] for place, choices in enumerate(self.allowed)]
        return Cost(*(sum(min(each.of(name) for each in group) for group in costs) for name in RESOURCES))

    def _solve(self, limits: Mapping[str, float]) -> Solution | None:
        groups = [
            [
                Option(
                    choice.name,
                    _noise_to_solve(self.noise[place][choice.name]),
                    tuple(_whole(name, self.cost(place, choice).of(name)) for name in limits),
                )
                for choice in choices
            ]
            for place, choices in enumerate(self.allowed)
        ]
        return solve(groups, [_whole(name, limit) for name, limit in limits.items()])

    def part(self, cost: Cost, whole: Cost) -> float:
        """Return a cost as the mean of its parts of all units at 8 bits."""
        parts = [cost.of(name) / whole.of(name) for name in PARTS if whole.of(name)]
        return sum(parts) / len(parts) if parts else 0.0

    def front(self) -> list[list[Choice]]:
        """Return the choices on the way from the cheapest to the one of least noise, each step the best for its cost.

        The points are those of the convex hull: at most one for each choice of each group but the cheapest, and one.
        """
        whole = self.all_at_8
        steps = []
        chosen = []
        for place in range(len(self.groups)):
            hull = self._hull(place, whole)
            chosen.append(hull[0][2])
            for (cost, noise, _), (next_cost, next_noise, choice) in pairwise(hull):
                slope = (noise - next_noise) / (next_cost - cost)
                steps.append((-slope, place, next_cost, choice))
        points = [list(chosen)]
        for _, place, _, choice in sorted(steps, key=lambda each: each[:3]):
            chosen[place] = choice
            points.append(list(chosen))
        return points

    def _hull(self, place: int, whole: Cost) -> list[_Point]:
        """Return cost, noise and choice of a group, each cheaper than the next and with more noise, and convex."""
        rows = sorted(
            (
                (self.part(self.cost(place, each), whole), self.noise[place][each.name], each)
                for each in self.allowed[place]
            ),
            key=lambda row: (row[0], row[1], row[2].name),
        )
        hull: list[tuple[float, float, Choice]] = []
        for row in rows:
            if hull and row[1] >= hull[-1][1]:
                continue
            while hull and row[0] <= hull[-1][0]:
                hull.pop()
            while len(hull) > 1 and _above(hull[-2], hull[-1], row):
                hull.pop()
            hull.append(row)
        return hull


def _whole(resource: str, value: float) -> int:
    """Return a cost or a limit as a whole number, rounded down: a sum of costs then never passes that of their sum."""
    return int(value * _WHOLE[resource] * (1 + 1e-9))


def _is_known(choice: Choice, noise: Mapping[str, float]) -> bool:
    return not choice.is_float and choice.name in noise


def _step_power(choice: Choice) -> float:
    """Return the squared steps of the weight and the activations of a choice, as parts of their ranges."""
    return float(4.0**-choice.weight_bits + 4.0**-choice.activation_bits)


def _noise_to_solve(noise: float) -> float:
    """Return the noise of an option; infinite where the output is not."""
    return math.inf if noise >= LARGEST else max(0.0, noise)


def _above(
    first: tuple[float, float, Choice], middle: tuple[float, float, Choice], last: tuple[float, float, Choice]
) -> bool:
    """Tell whether a point lies on or above the line between two others."""
    return (middle[1] - first[1]) * (last[0] - first[0]) >= (last[1] - first[1]) * (middle[0] - first[0])
