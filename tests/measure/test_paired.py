"""Intervals of paired differences against values that are known."""

from __future__ import annotations

import math

import pytest

from fxquant.measure.paired import paired_difference, student_quantile


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)]
)
def test_quantiles_of_student(freedom, expected):
    assert student_quantile(0.95, freedom) == pytest.approx(expected, rel=0.02)


def test_answers_count_by_the_pairs_that_differ():
    """1,000 answers, 20 lost and 10 won: the other 970 pairs tell nothing."""
    first = [1.0] * 20 + [0.0] * 10 + [1.0] * 970
    second = [0.0] * 20 + [1.0] * 10 + [1.0] * 970
    found = paired_difference(first, second)
    assert found.difference == pytest.approx(0.01)
    assert (found.items, found.differing) == (1000, 30)
    half = 1.96 * math.sqrt(31 - 100 / 1002) / 1002
    assert (found.low, found.high) == (
        pytest.approx(10 / 1002 - half, abs=1e-5),
        pytest.approx(10 / 1002 + half, abs=1e-5),
    )
    percent = paired_difference([100 * x for x in first], [100 * x for x in second])
    assert percent.high == pytest.approx(100 * found.high)


def test_models_that_agree_on_all_answers_may_still_differ_on_others():
    found = paired_difference([1.0] * 100, [1.0] * 100)
    assert found.difference == 0
    assert found.low < 0 < found.high < 0.05


def test_numbers_have_the_interval_of_their_mean_difference():
    found = paired_difference([3.0, 5.0, 4.0], [1.0, 2.0, 3.0])
    assert found.difference == 2
    assert found.high - 2 == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)


def test_batches_count_by_their_sizes_and_one_batch_tells_nothing():
    assert paired_difference([1.0, 0.5], [0.0, 0.5], weights=[3, 1]).difference == pytest.approx(0.75)
    alone = paired_difference([1.5], [1.0], weights=[8])
    assert (alone.low, alone.high) == (-math.inf, math.inf)


def test_how_many_items_would_tell():
    found = paired_difference([1.0] * 20 + [0.0] * 10 + [1.0] * 970, [0.0] * 20 + [1.0] * 10 + [1.0] * 970)
    half = (found.high - found.low) / 2
    assert found.items_needed(found.difference + half) == pytest.approx(1000)
    assert found.items_needed(found.difference + half / 2) == pytest.approx(4000)
    assert found.items_needed(found.difference) == math.inf
