"""What a comparison tells apart."""

from __future__ import annotations

import math

import pytest
import torch

from tests.fuzz.compare import decibels, difference, floats_of

ONE = torch.tensor([1.0, -2.0, float("nan"), float("inf"), 0.0])


def changed(place: int, value: float) -> torch.Tensor:
    other = ONE.clone()
    other[place] = value
    return other


@pytest.mark.parametrize(
    ("expected", "got", "said"),
    [
        (ONE, ONE.clone(), ""),
        (ONE, changed(0, 1 + 2**-23), "result 0: 1 of 5 values of float32[5] differ, the first at (0,): 1.0000001"),
        (ONE, changed(4, -0.0), "result 0: 1 of 5 values of float32[5] differ, the first at (4,): -0.0 for 0.0"),
        (ONE, changed(2, 0.0), "result 0: 1 of 5 values"),
        (ONE, ONE.double(), "result 0: float64[5] for float32[5]"),
        (ONE, ONE[None], "result 0: float32[1, 5] for float32[5]"),
        ((ONE, [ONE]), (ONE, (ONE,)), "the containers differ"),
        ({"a": ONE, "b": None}, {"a": ONE, "b": 3}, "result 1: 3 for None"),
        ((ONE, torch.tensor([1, 2])), (ONE, torch.tensor([1, 3])), "result 1: 1 of 2 values of int64[2]"),
    ],
)
def test_every_bit_counts(expected, got, said):
    found = difference(expected, got)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_a_share_of_the_largest():
    expected = torch.tensor([100.0, 1.0])
    assert difference(expected, expected + 1e-5, 1e-6) == ""
    assert difference(expected, expected + 1e-3, 1e-6) != ""
    assert difference(ONE, changed(0, 1 + 1e-6), 1e-6) == ""
    assert difference(ONE, changed(3, 1.0), 1e-6) != ""


def test_noise():
    assert decibels(100.0, 1.0) == 20
    assert decibels(1.0, 0.0) == math.inf
    assert decibels(1.0, math.nan) == decibels(0.0, 1.0) == -math.inf
    assert len(floats_of({"a": ONE, "b": [torch.tensor([1]), None, ONE]})) == 2
