"""The random models: equal for equal seeds, of every ingredient, and runnable."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from tests.fuzz.generate import COMMON, RARE, WANTED, generate, result_of
from tests.fuzz.ingredients import INGREDIENTS
from tests.fuzz.inputs import values_of
from tests.fuzz.scope import Scope
from tests.fuzz.source import Input

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


def test_a_seed_is_a_model():
    assert str(generate(12)) == str(generate(12))
    assert str(generate(12)) != str(generate(13))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", INGREDIENTS)
def test_every_ingredient_finds_its_place(name):
    """In most models in which it is wanted; and what is written runs as it ran while it was written."""
    made = [generate(seed, name) for seed in range(6)]
    assert sum(name in recipe.ingredients for recipe in made) >= 4
    with torch.no_grad():
        for seed, recipe in enumerate(made):
            recipe.build()(*values_of(recipe.inputs, seed))


def test_every_kind_of_result_comes():
    kinds = Counter()
    for seed in range(60):
        s = Scope(seed, (Input("x", (2, 4)),))
        s.add("", lambda s: [s.give("x * 2"), s.give("x + 1")][:0] or None)
        kinds[result_of(s, random.Random(seed)).ingredient] += 1
    assert len(kinds) == 5


def test_all_ingredients_are_wanted_in_each_round():
    assert set(WANTED[: len(INGREDIENTS)]) == set(INGREDIENTS)
    assert set(RARE) | set(COMMON) < set(INGREDIENTS)


def test_each_ingredient_is_in_one_of_thirty_models():
    """Of a round; by chance a few are in less, and in more of the next."""
    found = Counter(name for seed in range(len(WANTED)) for name in generate(seed).ingredients)
    assert {name: found[name] for name in INGREDIENTS if found[name] < len(WANTED) / 45} == {}
