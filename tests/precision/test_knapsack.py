"""The knapsack against enumeration, with one budget and with several, ties, and what cannot be reached."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from fxquant.precision import knapsack
from fxquant.precision.knapsack import Option, smallest_costs, solve


def enumerated(groups, limits):
    """Return the best choice by trying all."""
    best = None
    for chosen in itertools.product(*(range(len(group)) for group in groups)):
        options = [group[index] for group, index in zip(groups, chosen, strict=True)]
        costs = tuple(map(sum, zip(*(option.costs for option in options), strict=True)))
        if all(cost <= limit for cost, limit in zip(costs, limits, strict=True)):
            key = (sum(option.noise for option in options), costs, tuple(option.name for option in options))
            best = min(best, (key, chosen)) if best else (key, chosen)
    return best and best[1]


def drawn(seed: int, resources: int, largest: int):
    """Return groups with whole numbers, so that sums of floats are exact, and limits that may be too small."""
    draw = random.Random(seed)
    groups = [
        [
            Option(name, float(draw.randint(0, largest)), tuple(draw.randint(0, largest) for _ in range(resources)))
            for name in "abcd"[: draw.randint(1, 4)]
        ]
        for _ in range(draw.randint(1, 7))
    ]
    whole = [sum(max(option.costs[r] for option in group) for group in groups) for r in range(resources)]
    return groups, [int(total * draw.uniform(0.2, 0.9)) for total in whole]


@pytest.mark.parametrize("resources", [1, 2, 3])
@pytest.mark.parametrize("largest", [3, 1000])  # small numbers make ties
def test_it_finds_what_enumeration_finds(resources, largest):
    reached = 0
    for seed in range(60):
        groups, limits = drawn(seed, resources, largest)
        expected, found = enumerated(groups, limits), solve(groups, limits)
        if expected is None:
            assert found is None
            continue
        reached += 1
        assert found is not None
        assert found.gap == 0
        if resources == 1 or largest == 3:
            assert noise_and_costs(groups, found.chosen) == noise_and_costs(groups, expected)
        assert found.chosen == expected
    assert 5 < reached < 60


def noise_and_costs(groups, chosen):
    options = [group[index] for group, index in zip(groups, chosen, strict=True)]
    return sum(o.noise for o in options), tuple(map(sum, zip(*(o.costs for o in options), strict=True)))


def test_eight_groups_of_four():
    draw = random.Random(0)
    groups = [[Option(n, float(draw.randint(0, 99)), (draw.randint(0, 99),)) for n in "abcd"] for _ in range(8)]
    found = solve(groups, [300])
    assert found is not None
    assert found.chosen == enumerated(groups, [300])


def test_ties_go_to_the_cheaper_choice_then_to_names():
    same = [Option("b", 1.0, (5,)), Option("a", 1.0, (5,)), Option("c", 1.0, (4,))]
    assert solve([same, same[:2]], [100]).chosen == (2, 1)


def test_a_limit_below_the_least_is_unreachable():
    groups = [[Option("W4", 2.0, (4,)), Option("W8", 1.0, (8,))]] * 3
    assert smallest_costs(groups) == (12,)
    assert solve(groups, [11]) is None
    assert solve(groups, [12]).chosen == (0, 0, 0)
    assert solve(groups, [24]).chosen == (1, 1, 1)


def test_two_budgets_that_exclude_each_other():
    """Each can be reached alone, and both together cannot."""
    groups = [[Option("a", 0.0, (1, 9)), Option("b", 0.0, (9, 1))]]
    assert solve(groups, [1, 100]).chosen == (0,)
    assert solve(groups, [100, 1]).chosen == (1,)
    assert solve(groups, [8, 8]) is None


def test_infinite_noise_is_taken_only_where_nothing_else_can_be():
    groups = [[Option("dead", float("inf"), (1,)), Option("good", 3.0, (2,))]] * 2
    assert solve(groups, [4]).chosen == (1, 1)
    assert solve(groups, [3]).chosen in ((0, 1), (1, 0))


@pytest.mark.parametrize("large", [1e30, 1e12])
def test_an_option_of_huge_noise_does_not_blur_the_others(large):
    """Noise is counted in whole parts of the largest, of which the other noise would be none."""
    groups = [
        [Option("W8", 1e-6, (8,)), Option("W4", 0.5, (4,))],
        [Option("W8", 1e-5, (8,)), Option("W4", 1e-4, (4,))],
        [Option("good", 1e-3, (1,)), Option("huge", large, (0,))],
    ]
    assert solve(groups, [13]) == knapsack.Solution((0, 1, 0), 0.0)
    assert solve(groups, [100]) == knapsack.Solution((0, 0, 0), 0.0)
    assert solve(groups, [8]).chosen == (1, 1, 1)


def test_noise_and_costs_of_many_magnitudes():
    draw = random.Random(0)
    noise = [0.0, 1.0, 1e-6, 1e12, 1e30, math.inf]
    feasible = 0
    for _ in range(300):
        resources = draw.randint(1, 3)
        groups = [
            [
                Option(
                    name,
                    draw.choice(noise) * draw.uniform(0.5, 1),
                    tuple(draw.choice([0, 0, 1, 2, 5, 10**9]) for _ in range(resources)),
                )
                for name in "abcd"[: draw.randint(1, 4)]
            ]
            for _ in range(draw.randint(1, 5))
        ]
        limits = [draw.choice([0, 1, 3, 8, 10**9, 3 * 10**9]) for _ in range(resources)]
        expected, found = enumerated(groups, limits), solve(groups, limits)
        assert (found is None) == (expected is None)
        if expected is not None:
            feasible += 1
            assert found.gap == 0
            assert noise_and_costs(groups, found.chosen)[0] == pytest.approx(
                noise_and_costs(groups, expected)[0], rel=1e-9
            )
    assert feasible > 100


def test_limits_far_above_the_noise_leave_an_option_to_each_group():
    """The bound is a small difference of large numbers here, and its rounding is above the noise."""
    groups = [
        [Option("a", 9.141286153689817e-07, (1, 0))],
        [
            Option("a", 0.0, (2, 10**9)),
            Option("b", 3.0524235393506626e-07, (1, 2)),
            Option("c", 5.115464054506906e-07, (2, 0)),
        ],
        [Option("a", 0.0, (10**9, 10**9)), Option("b", 0.0, (1, 10**9))],
    ]
    assert solve(groups, [3 * 10**9, 10**9]).chosen == enumerated(groups, [3 * 10**9, 10**9]) == (0, 2, 1)


def test_a_large_one_is_exact():
    draw = random.Random(3)
    groups = []
    for _ in range(150):
        size = draw.randint(10, 10_000)
        groups.append([Option(f"W{b}", size * draw.uniform(0.5, 2) * 4.0**-b, (size * b,)) for b in (2, 4, 8, 16)])
    found = solve(groups, [sum(group[2].costs[0] for group in groups) // 2])
    assert found is not None
    assert found.gap == 0


def test_what_is_given_up_is_reported(monkeypatch):
    for name in ("FIRST_LABELS", "MOST_LABELS"):
        monkeypatch.setattr(knapsack, name, 1)
    gaps = []
    for seed in range(40):
        groups, limits = drawn(seed, 2, 1000)
        expected, found = enumerated(groups, limits), solve(groups, limits)
        if expected is None or found is None:
            continue
        lost = noise_and_costs(groups, found.chosen)[0] - noise_and_costs(groups, expected)[0]
        assert 0 <= lost <= found.gap + 1e-6
        gaps.append(found.gap)
    assert max(gaps) > 0
