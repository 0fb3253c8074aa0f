"""A random model out of the table of ingredients."""

from __future__ import annotations

import random
from collections.abc import Callable

from torch import Tensor

from tests.fuzz.ingredients import INGREDIENTS
from tests.fuzz.scope import Scope
from tests.fuzz.source import Input, Line, Recipe

STEPS = (0, 1, 2, 3, 4, 5, 6)
"""How many ingredients a model has beside the wanted one."""
TRIES = 12
"""Ingredients that are tried for one step."""
BATCHES = {2: (6, 8), 3: (3, 4), 4: (2, 3), 5: (2,)}
SIZES = {3: (4, 6, 8, 9), 4: (4, 5, 6, 8), 5: (3, 4, 5)}
CHANNELS = (2, 3, 4, 6, 8)
VOCABULARY = 10

RETURNS: dict[str, Callable[[list[str]], str]] = {
    "returns a tuple": lambda names: f"({', '.join(names)},)",
    "returns a list": lambda names: f"[{', '.join(names)}]",
    "returns a dict": lambda names: "{" + ", ".join(f"'{chr(97 + n)}': {name}" for n, name in enumerate(names)) + "}",
    "returns what is nested": lambda names: f"{{'first': ({names[0]}, [{', '.join(names[1:])}]), 'none': None}}",
    "returns None beside": lambda names: f"({', '.join(names)}, None)",
}
"""Kind of result -> its code. A lone value is returned as it is most of the time."""


COMMON = ("conv1d", "conv2d", "conv3d", "linear")
"""What first layers are, too."""
RARE = {
    "embedding": 16,
    "transposed conv3d": 8,
    "pixel shuffle": 8,
    "conv of a padding mode": 6,
    "conv that keeps the size": 4,
    "depthwise conv": 4,
    "conv, norm, activation": 4,
    "crop": 4,
    "layer norm over channels": 2,
    "transposed conv1d": 2,
    "transposed conv2d": 2,
}
"""How many times more often an ingredient is wanted that seldom suits the values that a model has."""


def times_wanted(name: str) -> int:
    """How often an ingredient is wanted in a round: others have it by chance, too, the more kinds of input it suits.

    So each is in about one of 25 models.
    """
    return 2 if name in COMMON else 13 - 2 * len(INGREDIENTS[name].ranks) + RARE.get(name, 0)


WANTED = tuple(
    name for turn in range(max(map(times_wanted, INGREDIENTS))) for name in INGREDIENTS if turn < times_wanted(name)
)
"""A round: each ingredient in turn, then again those that are wanted more often."""


def wanted_by(seed: int) -> str:
    """The ingredient that is wanted in the model of this seed: each in turn."""
    return WANTED[seed % len(WANTED)]


def generate(seed: int, wanted: str | None = None) -> Recipe:
    """The model of a seed, which has the ingredient that is wanted wherever that can be written.

    Args:
        seed: Of all choices; equal seeds give equal models.
        wanted: Name of an ingredient. None: each in turn.
    """
    wanted = wanted_by(seed) if wanted is None else wanted
    rng = random.Random(seed)
    rank = rng.choice(INGREDIENTS[wanted].ranks)
    scope = Scope(seed, inputs_of(rng, rank, indices=INGREDIENTS[wanted].indices or rng.random() < 0.03))
    if rng.random() < 0.6:
        first_layer(scope, rank)
    steps = rng.choice(STEPS)
    position = rng.randint(0, steps)
    missing = True
    for step in range(steps + 1):
        if missing and step >= position:
            missing = not any(scope.add(wanted, INGREDIENTS[wanted].build) for _ in range(TRIES))
        else:
            any_ingredient(scope, rng)
    has_product = any(kind in line.code for line in scope.members for kind in ("nn.Conv", "nn.Linear", "parameter("))
    if not has_product and not scope.add("linear", INGREDIENTS["linear"].build):
        first_layer(scope, rank)
    return scope.recipe(result_of(scope, rng)).pruned()


def inputs_of(rng: random.Random, rank: int, *, indices: bool) -> tuple[Input, ...]:
    batch, sizes = (
        rng.choice(BATCHES[rank]),
        tuple(rng.choice(SIZES[rank]) for _ in range(rank - 2)) if rank > 2 else (),
    )
    shape = (batch, rng.choice(CHANNELS if rank > 2 else (4, 6, 8, 12)), *sizes)
    inputs = [Input("x", shape)]
    if rng.random() < 0.25:
        inputs.append(Input("y", shape))
    if indices:
        inputs.append(Input("ids", (batch, rng.choice((3, 5))), VOCABULARY))
    return tuple(inputs)


def first_layer(scope: Scope, rank: int) -> None:
    name = "linear" if rank == 2 else f"conv{rank - 2}d"
    for _ in range(TRIES):
        if scope.add(name, INGREDIENTS[name].build):
            return


def any_ingredient(scope: Scope, rng: random.Random) -> None:
    for _ in range(TRIES):
        name = rng.choice(WANTED)
        if scope.add(name, INGREDIENTS[name].build):
            return


def result_of(scope: Scope, rng: random.Random) -> Line:
    """Values that nothing reads yet, at most three; sometimes one that is read as well."""
    read = {name for line in scope.lines for name in line.reads}
    values = [name for name, value in scope.values.items() if isinstance(value, Tensor)]
    made = [name for name in values if name not in {each.name for each in scope.inputs}]
    unread = [name for name in made if name not in read] or made[-1:]
    chosen = list(dict.fromkeys([*unread[-3:], *(rng.sample(made, 1) if rng.random() < 0.15 else [])]))
    if len(chosen) == 1 and rng.random() < 0.75:
        return Line(f"return {chosen[0]}")
    kind = rng.choice(tuple(RETURNS))
    return Line(f"return {RETURNS[kind](chosen)}", kind)
