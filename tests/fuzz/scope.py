"""What an ingredient writes its lines with: the values that a model has so far, and their shapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.fuzz.source import NAMES, Input, Line, Recipe, draw

LARGEST = 8192
"""Elements of one value: models are small, so that a thousand take minutes."""
SIZES = (0.02, 200.0)
"""Largest magnitude of a value, between these: others say nothing about eight bits."""
LATEST = 0.6
"""How often a value is the last one that fits; else it is any that fits."""


def has_statistics(value: Tensor) -> bool:
    """Whether a batch norm that trains on it has some values of each channel: of two, it gives ±1 whatever they are."""
    return value.numel() >= 3 * value.shape[1]


class NoValueError(Exception):
    """Nothing that the model has so far suits an ingredient."""


class Scope:
    """A model while it is written: each line runs when it is added, so shapes are known, and what fails is left out.

    Args:
        seed: Of all choices.
        inputs: Arguments of the model.
    """

    def __init__(self, seed: int, inputs: tuple[Input, ...]) -> None:
        self.rng = random.Random(seed)
        self.inputs = inputs
        self.members: list[Line] = []
        self.lines: list[Line] = []
        self.values: dict[str, Tensor] = {}
        self.indices: list[str] = []
        self.ingredient = ""
        self._model = nn.Module().eval()
        self._last = 0
        for number, each in enumerate(inputs):
            if each.high:
                self.values[each.name] = torch.arange(each.shape[0] * each.shape[1]).reshape(each.shape) % each.high
                self.indices.append(each.name)
            else:
                self.values[each.name] = draw(seed + number, *each.shape)
        self._of_inputs = {value.untyped_storage().data_ptr() for value in self.values.values()}

    def add(self, ingredient: str, build: Callable[[Scope], None]) -> bool:
        """Let an ingredient write its lines. False, and nothing is written, where it does not suit."""
        members, lines, values = list(self.members), list(self.lines), dict(self.values)
        self.ingredient = ingredient
        try:
            with torch.no_grad():
                build(self)
                self._check(name for name in self.values if name not in values)
        except (NoValueError, RuntimeError, ValueError, IndexError, TypeError, AssertionError, NotImplementedError):
            self.members, self.lines, self.values = members, lines, values
            return False
        return True

    def _check(self, added: Any) -> None:
        for name in added:
            value = self.values[name]
            if not isinstance(value, Tensor) or not value.is_floating_point():
                continue
            if value.numel() > LARGEST or value.numel() == 0 or not value.isfinite().all():
                raise NoValueError
            if not SIZES[0] <= float(value.abs().max()) <= SIZES[1]:
                raise NoValueError

    # What there is.

    def pick(self, *ranks: int, where: Callable[[Tensor], bool] = lambda value: True) -> str:
        """Name of a value of real numbers with so many dimensions (of any, without ``ranks``)."""
        found = [
            name
            for name, value in self.values.items()
            if isinstance(value, Tensor)
            and value.is_floating_point()
            and (not ranks or value.dim() in ranks)
            and where(value)
        ]
        if not found:
            raise NoValueError
        return found[-1] if self.rng.random() < LATEST else self.rng.choice(found)

    def another(self, name: str, where: Callable[[Tensor], bool]) -> str:
        """Name of a value other than ``name``, of as many dimensions."""
        return self.pick(self.rank(name), where=lambda value: value is not self.values[name] and where(value))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    def rank(self, name: str) -> int:
        return self.values[name].dim()

    def axis(self, name: str, first: int = 1) -> int:
        """An axis; half of the time counted from the end. ``first=1``: not that of the batch."""
        rank = self.rank(name)
        if rank <= first:
            raise NoValueError
        axis = self.rng.randrange(first, rank)
        return axis if self.rng.random() < 0.5 else axis - rank

    def belongs_to_an_input(self, name: str) -> bool:
        return self.values[name].untyped_storage().data_ptr() in self._of_inputs

    def choose(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def happens(self, share: float = 0.5) -> bool:
        return self.rng.random() < share

    # What is written.

    def module(self, expression: str) -> str:
        """A layer of the model with weights of its own; gives ``self.m1``."""
        return self._member("m", f"seeded({self.rng.randrange(10**6)}, {expression})")

    def parameter(self, *shape: int) -> str:
        return self._member("p", f"parameter({', '.join(map(str, (self.rng.randrange(10**6), *shape)))})")

    def gain(self, *shape: int) -> str:
        return self._member("p", f"gain({', '.join(map(str, (self.rng.randrange(10**6), *shape)))})")

    def _member(self, kind: str, expression: str) -> str:
        self._last += 1
        name = f"self.{kind}{self._last}"
        self.member_line(f"{name} = {expression}")
        return name

    def member_line(self, code: str) -> None:
        exec(code, {**NAMES, "self": self._model})
        self._model.eval()
        self.members.append(Line(code, self.ingredient))

    def give(self, expression: str) -> str:
        """A line that makes a value; gives its name."""
        self._last += 1
        name = f"v{self._last}"
        self.run(f"{name} = {expression}")
        return name

    def gives(self, expression: str, count: int) -> tuple[str, ...]:
        """A line that makes several values."""
        made = tuple(f"v{self._last + 1 + number}" for number in range(count))
        self._last += count
        self.run(f"{', '.join(made)}{',' if count == 1 else ''} = {expression}")
        return made

    def run(self, code: str) -> None:
        """Any line."""
        exec(code, {**NAMES, "self": self._model}, self.values)
        self.lines.append(Line(code, self.ingredient))

    def recipe(self, returns: Line) -> Recipe:
        return Recipe(self.inputs, tuple(self.members), tuple(self.lines), returns)
