"""What a check has found, and the few lines that show it."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from torch import nn

from tests.fuzz.case import Case, NothingToDoError
from tests.fuzz.checks import CHECKS
from tests.fuzz.source import Input, Recipe

HEAD = """import torch
import torch.nn.functional as F
from torch import nn
from tests.fuzz.finding import show
from tests.fuzz.source import Input, draw, gain, parameter, seeded
"""


@dataclass(frozen=True)
class Finding:
    """A check that does not hold for a model."""

    check: str
    message: str
    recipe: Recipe
    seed: int

    @property
    def error(self) -> str:
        """The class of the error that was raised; empty if values are wrong."""
        found = re.match(r"(\w*(?:Error|Warning|Exception|Interrupt)):", self.message)
        return found[1] if found else ""

    def __str__(self) -> str:
        inputs = ", ".join(map(str, self.recipe.inputs))
        said = "\n# ".join(f"{self.check}: {self.message.strip()}".splitlines())
        return f"# {said}\n{HEAD}\n\n{self.recipe}\n\nshow({self.check!r}, Model, [{inputs}], seed={self.seed})\n"


def examine(case: Case, names: tuple[str, ...] | None = None) -> tuple[str, str] | None:
    """Name and message of the first check, of all or of these, that does not hold.

    Raises:
        NothingToDoError: the model has nothing to quantize.
    """
    for name in CHECKS if names is None else names:
        try:
            message = CHECKS[name](case)
        except NothingToDoError:
            raise
        except Exception as error:  # whatever is raised is a finding
            message = f"{type(error).__name__}: {error}"
        if message:
            return name, message
    return None


def find(recipe: Recipe, seed: int, names: tuple[str, ...] | None = None) -> Finding | None:
    """What is wrong with a random model; None if nothing is, or if there is nothing to quantize."""
    try:
        found = examine(Case.of(recipe, seed), names)
    except NothingToDoError:
        return None
    return None if found is None else Finding(*found, recipe, seed)


def show(check: str, model: type[nn.Module], inputs: list[Input], seed: int) -> None:
    """Run one check on a model that was printed, and say what it finds."""
    found = examine(Case(model, tuple(inputs), seed, inspect.getsource(model)), (check,))
    print("nothing was found" if found is None else ": ".join(found))
