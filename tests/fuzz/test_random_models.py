"""About a minute of random models, the same ones in every run: see ``make fuzz`` for more."""

from __future__ import annotations

import pytest

from tests.fuzz.case import Case, NothingToDoError
from tests.fuzz.finding import Finding, examine
from tests.fuzz.generate import WANTED, generate

TOGETHER = 10
"""Models of one test."""
FIRST = 100_000
"""Seed of the first model: none that ``make fuzz`` begins with."""

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


@pytest.mark.parametrize("start", range(FIRST, FIRST + len(WANTED), TOGETHER))
def test_nothing_is_found(start):
    """In as many models as it takes for each ingredient to be wanted once."""
    for seed in range(start, min(start + TOGETHER, FIRST + len(WANTED))):
        recipe = generate(seed)
        try:
            found = examine(Case.of(recipe, seed))
        except NothingToDoError:
            continue
        assert found is None, str(Finding(*found, recipe, seed))
