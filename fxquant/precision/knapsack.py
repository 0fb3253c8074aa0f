"""The multiple-choice knapsack: one option of each group, least noise, and no resource above its limit. Exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

LARGEST_NOISE = 1 << 52
"""Noise is counted in whole numbers up to this, so that sums are exact and equal where they are equal."""
MARGIN = 1e-9
"""Part of the noise by which a bound in floats may be wrong."""
ROUNDING = 1e-13
"""The same of the priced limits, which are part of both sides of a bound and far above the noise where they are large.
"""
COARSE = 1 << 20
"""How many times the noise of a whole choice an option may have, before all is counted again without it."""
MOST_LABELS = 3000
"""Partial choices that are followed at a time. Where there are more, the answer has a gap."""
FIRST_LABELS = 100
"""The same for a first look, whose answer then shortens the exact search."""
ROUNDS, HALVINGS = 4, 40
"""How often the multiplier of each resource is searched for, and in how many steps."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to choose for a group.

    Args:
        name: Decides between options that are equal in all else.
        noise: What it adds to the noise, at least 0; inf for one that should never be taken if it can be helped.
        costs: What it takes of each resource, whole numbers of at least 0.
    """

    name: str
    noise: float
    costs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """The best choice that was found."""

    chosen: tuple[int, ...]
    """The index of the option of each group."""
    gap: float
    """By how much the noise may at most be above the least there is, in the unit of the options; 0: it is exact."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    index: int
    name: str
    noise: int
    all_costs: tuple[int, ...]
    costs: tuple[int, ...]
    """Of the resources whose limits may be broken."""

    @property
    def key(self) -> tuple[int, tuple[int, ...], str]:
        """Order options: less noise, then less cost, then the name."""
        return self.noise, self.all_costs, self.name


_Groups = list[list[_Candidate]]
_Label = tuple[int, tuple[int, ...], tuple[str, ...], tuple[int, ...], tuple[int, ...]]
"""Noise, all costs and names of the options that were chosen so far, which order them; costs that count; indices."""


def smallest_costs(groups: Sequence[Sequence[Option]]) -> tuple[int, ...]:
    """Return the least that each resource can come to, for itself.

    Args:
        groups: The options of each group; at least one group.
    """
    resources = range(len(groups[0][0].costs))
    return tuple(sum(min(option.costs[r] for option in group) for group in groups) for r in resources)


def solve(groups: Sequence[Sequence[Option]], limits: Sequence[int]) -> Solution | None:
    """Choose one option of each group: the least sum of noise with no cost above its limit.

    Of several such choices it is the one with the least costs, compared resource by resource, then the one whose names
    come first, group by group. The same groups give the same answer on any machine.

    Args:
        groups: The options of each group, at least one; all have one cost for each limit.
        limits: The most that the costs may come to.

    Returns:
        The choice; None where no choice keeps to the limits.

    Source:
        Kellerer, Pferschy, Pisinger, "Knapsack Problems" (2004), chapter 11: dominance, the Lagrange bound, and the
        reduction of options by their reduced costs; what is left is searched stage by stage with bounds.
    """
    # Leave out limits that cannot be broken, and options that another one beats in all respects.
    most = [sum(max(option.costs[r] for option in group) for group in groups) for r in range(len(limits))]
    binding = [r for r, limit in enumerate(limits) if most[r] > limit]
    bounds = [limits[r] for r in binding]
    whole, unit = _in_whole_noise(groups, binding)
    reduced = [_undominated(group) for group in whole]
    if any(sum(min(c.costs[r] for c in g) for g in reduced) > limit for r, limit in enumerate(bounds)):
        return None

    # Bound the noise from below, and find a first choice that keeps to the limits.
    multipliers = _multipliers(reduced, bounds)
    found = _first_choice(reduced, bounds, multipliers)
    best = math.inf if found is None else sum(c.noise for c in found)

    # Leave out options that no choice as good as the best one so far can hold, and search what is left: first a part of
    # it, for a better choice to compare with.
    lost = math.inf
    for labels in (FIRST_LABELS, MOST_LABELS):
        reduced = _worth_a_look(reduced, bounds, multipliers, best)
        label, lost = _search(reduced, bounds, multipliers, best, labels)
        if label is not None and (found is None or label <= _label_of(found, reduced)):
            found = _with_label(label, reduced)
            best = label[0]
        if lost == math.inf:
            break
    if found is None:
        return None
    gap = max(0.0, best - lost) * unit if lost < math.inf else 0.0
    solution = Solution(tuple(c.index for c in found), gap)
    return _counted_finer(groups, limits, solution) or solution


def _counted_finer(groups: Sequence[Sequence[Option]], limits: Sequence[int], found: Solution) -> Solution | None:
    """Solve again without the options that have more noise than a whole choice has: the unit is a part of the largest.

    Returns:
        The choice; None where the unit was fine enough.
    """
    chosen = [group[index].noise for group, index in zip(groups, found.chosen, strict=True)]
    most = math.fsum(noise for noise in chosen if math.isfinite(noise))
    largest = max((o.noise for group in groups for o in group if math.isfinite(o.noise)), default=0.0)
    if largest <= most * COARSE or (found.gap and not all(map(math.isfinite, chosen))):
        return None
    kept = [[i for i, o in enumerate(group) if o.noise <= most or o.noise == math.inf] for group in groups]
    finer = solve([[group[i] for i in indices] for group, indices in zip(groups, kept, strict=True)], limits)
    if finer is None:
        return None
    return Solution(tuple(indices[i] for indices, i in zip(kept, finer.chosen, strict=True)), finer.gap)


def _margin(best: float, multipliers: Sequence[float], limits: Sequence[int]) -> float:
    """Return by how much a bound on a noise of ``best`` may be wrong."""
    priced = sum(m * b for m, b in zip(multipliers, limits, strict=True))
    return MARGIN * (abs(best) + 1) + ROUNDING * priced


def _worth_a_look(groups: _Groups, limits: Sequence[int], multipliers: Sequence[float], best: float) -> _Groups:
    """Return the options that a choice with a noise of ``best`` can hold, by what each costs above the cheapest."""
    least = [min(_priced(c, multipliers) for c in group) for group in groups]
    bound = sum(least) - sum(m * b for m, b in zip(multipliers, limits, strict=True))
    slack = max(0.0, best - bound + _margin(best, multipliers, limits)) if best < math.inf else math.inf
    return [
        [c for c in group if _priced(c, multipliers) - low <= slack] for group, low in zip(groups, least, strict=True)
    ]


def _label_of(chosen: Sequence[_Candidate], groups: _Groups) -> _Label:
    """Return what a whole choice is compared by: names and indices are those of the groups that are still open."""
    noise, everything, _, costs, _ = _decided(chosen, chosen[0])
    still_open = [c for c, group in zip(chosen, groups, strict=True) if len(group) > 1]
    return noise, everything, tuple(c.name for c in still_open), costs, tuple(c.index for c in still_open)


def _with_label(label: _Label, groups: _Groups) -> list[_Candidate]:
    """Return the whole choice that a label stands for."""
    indices = iter(label[4])
    by_group = [{c.index: c for c in group} for group in groups]
    return [group[next(indices)] if len(group) > 1 else next(iter(group.values())) for group in by_group]


def _in_whole_noise(groups: Sequence[Sequence[Option]], binding: Sequence[int]) -> tuple[_Groups, float]:
    """Return the options with noise in whole numbers, and the float value of one, a power of two."""
    finite = [option.noise for group in groups for option in group if math.isfinite(option.noise)]
    unit = math.ldexp(1.0, math.frexp(max(finite, default=0.0))[1]) / LARGEST_NOISE

    def whole(noise: float) -> int:
        return round(noise / unit) if math.isfinite(noise) else LARGEST_NOISE * (len(groups) + 1)

    return [
        [
            _Candidate(i, each.name, whole(each.noise), each.costs, tuple(each.costs[r] for r in binding))
            for i, each in enumerate(group)
        ]
        for group in groups
    ], unit


def _undominated(group: Sequence[_Candidate]) -> list[_Candidate]:
    """Return the options of a group that no other one equals or beats, in order."""
    found: list[_Candidate] = []
    for each in sorted(group, key=lambda c: c.key):
        if not any(all(a <= b for a, b in zip(other.costs, each.costs, strict=True)) for other in found):
            found.append(each)
    return found


def _priced(candidate: _Candidate, multipliers: Sequence[float]) -> float:
    return candidate.noise + sum(m * c for m, c in zip(multipliers, candidate.costs, strict=True))


def _cheapest(groups: _Groups, multipliers: Sequence[float]) -> list[_Candidate]:
    return [min(group, key=lambda c: (_priced(c, multipliers), c.all_costs, c.name)) for group in groups]


def _totals(chosen: Sequence[_Candidate], resources: int) -> list[int]:
    return [sum(c.costs[r] for c in chosen) for r in range(resources)]


def _multipliers(groups: _Groups, limits: Sequence[int]) -> list[float]:
    """Find what a unit of each resource is worth: coordinate by coordinate, the bound is concave in each."""
    multipliers = [0.0] * len(limits)
    for _ in range(ROUNDS if len(limits) > 1 else 1):
        for r, limit in enumerate(limits):
            low, high = 0.0, LARGEST_NOISE / max(limit, 1)

            def over(value: float, r: int = r, limit: int = limit) -> bool:
                tried = [*multipliers[:r], value, *multipliers[r + 1 :]]
                return sum(c.costs[r] for c in _cheapest(groups, tried)) > limit

            if not over(0.0):
                multipliers[r] = 0.0
                continue
            while over(high) and high < LARGEST_NOISE * len(groups):
                low, high = high, high * 8
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                low, high = (middle, high) if over(middle) else (low, middle)
            multipliers[r] = high
    return multipliers


def _first_choice(groups: _Groups, limits: Sequence[int], multipliers: Sequence[float]) -> list[_Candidate] | None:
    """Choose by the multipliers, save until the limits are kept, and spend what is then left."""
    chosen = _cheapest(groups, multipliers)
    totals = _totals(chosen, len(limits))
    scale = [max(limit, 1) for limit in limits]

    def excess(totals: Sequence[int]) -> float:
        return sum(max(0, t - b) / s for t, b, s in zip(totals, limits, scale, strict=True))

    def moved(place: int, option: _Candidate) -> list[int]:
        return [t - o + n for t, o, n in zip(totals, chosen[place].costs, option.costs, strict=True)]

    options = [(place, option) for place, group in enumerate(groups) for option in group]
    while (now := excess(totals)) > 0:
        savings = [
            ((option.noise - chosen[place].noise) / (now - after), place, option)
            for place, option in options
            if (after := excess(moved(place, option))) < now
        ]
        if not savings:
            return None
        _, place, option = min(savings, key=lambda each: (each[0], each[1], each[2].name))
        totals, chosen[place] = moved(place, option), option
    while True:
        gains = [
            (option.noise - chosen[place].noise, place, option)
            for place, option in options
            if option.noise < chosen[place].noise and not excess(moved(place, option))
        ]
        if not gains:
            return chosen
        _, place, option = min(gains, key=lambda each: (each[0], each[1], each[2].name))
        totals, chosen[place] = moved(place, option), option


def _search(
    groups: _Groups, limits: Sequence[int], multipliers: Sequence[float], best: float, most_labels: int
) -> tuple[_Label | None, float]:
    """Follow all partial choices that may lead to one as good as ``best``; groups with one option are decided.

    Returns:
        The best whole choice, and the least bound of those that were given up for their number; inf: none was.
    """
    # What all groups behind a place cost and price at least.
    resources = range(len(limits))
    labels = [_decided([group[0] for group in groups if len(group) == 1], groups[0][0])]
    groups = [group for group in groups if len(group) > 1]
    ahead = [(0.0, [0] * len(limits))]  # of the groups behind each place: the least price, the least costs
    for group in reversed(groups):
        price, costs = ahead[-1]
        least = min(_priced(c, multipliers) for c in group)
        ahead.append((price + least, [costs[r] + min(c.costs[r] for c in group) for r in resources]))
    ahead.reverse()
    # A label can be dropped if its bound is above the best that is known.
    worth = sum(m * b for m, b in zip(multipliers, limits, strict=True))
    most = best + _margin(best, multipliers, limits)
    lost = math.inf
    # Extend each label by each option of the next group, and keep those that no other beats.
    for place, group in enumerate(groups, 1):
        price, costs = ahead[place]
        bounded: list[tuple[float, _Label]] = []
        for noise, all_spent, names, spent, indices in labels:
            for option in group:
                total = tuple(spent[r] + option.costs[r] for r in resources)
                if any(total[r] + costs[r] > limits[r] for r in resources):
                    continue
                sum_ = noise + option.noise
                bound = sum_ + price + sum(m * t for m, t in zip(multipliers, total, strict=True)) - worth
                if bound <= most:
                    everything = tuple(map(add, all_spent, option.all_costs))
                    label = (sum_, everything, (*names, option.name), total, (*indices, option.index))
                    bounded.append((bound, label))
        bounded = _undominated_labels(bounded)
        if len(bounded) > most_labels:
            bounded.sort()
            lost = min(lost, bounded[most_labels][0])
            del bounded[most_labels:]
        labels = [label for _, label in bounded]
    return (min(labels) if labels else None), lost


def _decided(chosen: Sequence[_Candidate], like: _Candidate) -> _Label:
    """Return the label of what is chosen before the search begins."""
    everything = tuple(sum(c.all_costs[r] for c in chosen) for r in range(len(like.all_costs)))
    costs = tuple(sum(c.costs[r] for c in chosen) for r in range(len(like.costs)))
    return sum(c.noise for c in chosen), everything, (), costs, ()


def _undominated_labels(bounded: list[tuple[float, _Label]]) -> list[tuple[float, _Label]]:
    """Leave out partial choices that another one equals or beats: all of them for one resource, else equal costs."""
    bounded.sort(key=lambda each: each[1][:3])
    found: list[tuple[float, _Label]] = []
    if bounded and len(bounded[0][1][3]) == 1:
        least = math.inf
        for each in bounded:
            if each[1][3][0] < least:
                least = each[1][3][0]
                found.append(each)
        return found
    seen: set[tuple[int, ...]] = set()
    for each in bounded:
        if each[1][3] not in seen:
            seen.add(each[1][3])
            found.append(each)
    return found
