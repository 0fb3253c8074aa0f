"""The table of everything that random models are made of."""

from __future__ import annotations

from tests.fuzz.ingredients import (
    assignments,
    attention,
    convolutions,
    functions,
    joins,
    moves,
    norms,
    pools,
    sharing,
    weights,
)
from tests.fuzz.ingredients.table import Ingredient

INGREDIENTS: dict[str, Ingredient] = {
    each.name: each
    for part in (convolutions, pools, moves, joins, functions, norms, attention, weights, sharing, assignments)
    for each in part.INGREDIENTS
}
"""Name -> what writes it."""

__all__ = ["INGREDIENTS", "Ingredient"]
