"""About a minute of random models, the same ones in every run: see ``make fuzz`` for more."""

from __future__ import annotations

import pytest

from tests.fuzz.case import Case, NothingToDoError
from tests.fuzz.finding import Finding, examine
from tests.fuzz.generate import WANTED, generate, wanted_by
from tests.fuzz.ingredients import INGREDIENTS

MODELS = 130
"""Enough for each ingredient to be wanted once, at the beginning of a round."""
TOGETHER = 10
"""Models of one test."""
FIRST = 150 * len(WANTED)
"""Seed of the first model: none that ``make fuzz`` begins with."""

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


@pytest.mark.parametrize("start", range(FIRST, FIRST + MODELS, TOGETHER))
def test_nothing_is_found(start):
    for seed in range(start, start + TOGETHER):
        recipe = generate(seed)
        try:
            found = examine(Case.of(recipe, seed))
        except NothingToDoError:
            continue
        assert found is None, str(Finding(*found, recipe, seed))


def test_each_ingredient_is_wanted():
    assert {wanted_by(FIRST + number) for number in range(MODELS)} == set(INGREDIENTS)
