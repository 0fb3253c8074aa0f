"""About a minute of random models, the same ones in every run: see ``make fuzz`` for more."""

from __future__ import annotations

import pytest

from tests.fuzz.case import Case, NothingToDoError
from tests.fuzz.finding import Finding, examine
from tests.fuzz.generate import WANTED, generate
from tests.fuzz.ingredients import INGREDIENTS

MODELS = 70
"""Few, but so chosen that each ingredient is in one of them."""
TOGETHER = 10
"""Models of one test."""
FIRST = 150 * len(WANTED) + 59
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


def test_each_ingredient_is_in_a_model():
    made = (generate(seed) for seed in range(FIRST, FIRST + MODELS))
    assert set(INGREDIENTS) <= {name for recipe in made for name in recipe.ingredients}
