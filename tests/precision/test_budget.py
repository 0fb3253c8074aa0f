"""Budgets: parts, numbers with units, and what is refused, in whose words."""

from __future__ import annotations

import pytest

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.plan.precision import Cost
from fxquant.precision.budget import in_words, unreachable

WHOLE = Cost(size=1000.0, bitops=6.4e6, latency=2e-3, activations=500.0)


@pytest.mark.parametrize(
    ("resource", "value", "expected"),
    [
        ("size", 0.5, 500),
        ("size", "3.1MB", 3.1e6),
        ("size", "2 KiB", 2048),
        ("bitops", "2.5Gbitops", 2.5e9),
        ("bitops", 1, 6.4e6),
        ("latency", "4ms", 4e-3),
        ("latency", "250 µs", 250e-6),
        ("activations", "500kB", 5e5),
    ],
)
def test_limits(resource, value, expected):
    budget = fxq.Budget(**{resource: value})
    assert budget.names == (resource,)
    assert budget.limit(resource, WHOLE) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0, -0.5, 1.01, 50, float("nan"), True, [0.5]])
def test_a_part_out_of_range(value):
    with pytest.raises(InputError) as caught:
        fxq.Budget(size=value)
    assert str(caught.value).splitlines() == [
        "the budget of size is out of range",
        f"  got:      {value!r}",
        '  expected: a part of what all units at 8 bits cost, in (0, 1], or a number with a unit: "3.1MB"',
    ]


@pytest.mark.parametrize(("resource", "text"), [("size", "3.1MF"), ("bitops", "3MB"), ("latency", "4"), ("size", "0B")])
def test_an_unknown_unit(resource, text):
    with pytest.raises(InputError) as caught:
        fxq.Budget(**{resource: text})
    lines = str(caught.value).splitlines()
    assert lines[:2] == [f"the budget of {resource} has no known unit", f"  got:      {text!r}"]
    assert lines[2].startswith("  expected: a number above 0 with one of ")


def test_no_limit():
    with pytest.raises(InputError, match="a budget limits something"):
        fxq.Budget()


def test_what_cannot_be_reached_says_what_can_be():
    error = unreachable(fxq.Budget(size=0.3), ["size"], Cost(size=500.0), WHOLE)
    assert str(error).splitlines()[:3] == [
        "the budget cannot be reached",
        "  got:      size=0.3",
        "  expected: size: at least 500 B (0.5 of all at 8 bits)",
    ]


@pytest.mark.parametrize(
    ("resource", "value", "text"),
    [
        ("size", 3.1e6, "3.1 MB"),
        ("bitops", 12, "12 bitops"),
        ("latency", 0.004, "4 ms"),
        ("activations", 1500, "1.5 kB"),
    ],
)
def test_costs_in_words(resource, value, text):
    assert in_words(resource, value) == text
