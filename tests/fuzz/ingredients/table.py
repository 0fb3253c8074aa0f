"""A row of the table of ingredients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.scope import Scope


@dataclass(frozen=True)
class Ingredient:
    """One kind of thing that models do."""

    name: str
    build: Callable[[Scope], None]
    """Writes it into a model; raises where it does not suit."""
    ranks: tuple[int, ...] = (2, 3, 4)
    """Dimensions of the input of a model that it suits, batch included."""
    indices: bool = False
    """Whether it needs an input of indices."""
