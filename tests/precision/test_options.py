"""What can be chosen: the noise of what was not measured, and sentences about what is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fxquant.precision.choices import choices_of
from fxquant.precision.options import Excluded, Options


@pytest.fixture
def options() -> Options:
    groups: Any = [SimpleNamespace(name=name) for name in ("first", "second")]
    backend: Any = None
    return Options(groups, choices_of(["W4A4", "W6A6", "W8A8", "float"]), backend)


def test_each_bit_more_quarters_noise_that_was_not_measured(options):
    options.noise[0]["W6A6"] = 0.01
    assert options.assume_missing() == (
        *("first W4A4", "first W8A8"),
        *("second W4A4", "second W6A6", "second W8A8"),
    )
    expected = {"W4A4": pytest.approx(0.16), "W6A6": pytest.approx(0.01), "W8A8": pytest.approx(0.01 / 16), "float": 0}
    assert options.noise == [expected, expected]


def test_what_was_measured_stays(options):
    measured = {"W4A4": 0.3, "W6A6": 0.2, "W8A8": 0.1, "float": 0.0}
    options.noise = [dict(measured), dict(measured)]
    assert options.assume_missing() == ()
    assert options.noise == [measured, measured]


def test_a_sentence_for_each_choice_and_reason(options):
    options.excluded += [
        Excluded("first", "W4A4", "no operator"),
        Excluded("second", "W4A4", "no operator"),
        Excluded("second", "W6A6", "a fixed observer"),
    ]
    assert options.left_out == [
        "W4A4 is left out for 2 of 2 groups: no operator",
        "W6A6 is left out for 1 of 2 groups: a fixed observer",
    ]
