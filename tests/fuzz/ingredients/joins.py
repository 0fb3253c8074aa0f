"""What joins two values: cat, stack, residuals, products, containers."""

from __future__ import annotations

from tests.fuzz.ingredients.table import Ingredient
from tests.fuzz.scope import NoValueError, Scope

LARGER = (3, 10, 100)
"""How much larger the values of one branch may be than those of another."""


def like(s: Scope, x: str, axis: int | None) -> str:
    """A value of the shape of ``x``, but for its size along an axis; made by a layer where there is none."""
    shape, rank = s.shape(x), s.rank(x)

    def fits(value: object) -> bool:
        other = tuple(value.shape)  # type: ignore[attr-defined]
        return len(other) == rank and all(
            one == two for number, (one, two) in enumerate(zip(shape, other, strict=True)) if number != axis
        )

    try:
        return s.another(x, fits)
    except NoValueError:
        return branch(s, x)


def branch(s: Scope, x: str) -> str:
    """A layer that keeps the shape."""
    channels = s.shape(x)[1] if s.rank(x) > 2 else s.shape(x)[-1]
    if s.rank(x) > 2:
        return s.give(f"{s.module(f'nn.Conv{s.rank(x) - 2}d({channels}, {channels}, 1)')}({x})")
    return s.give(f"{s.module(f'nn.Linear({channels}, {channels})')}({x})")


def cat(s: Scope) -> None:
    x = s.pick(2, 3, 4, 5)
    axis = s.axis(x, first=0 if s.happens(0.1) else 1)
    parts = [x, like(s, x, axis % s.rank(x)), *(s.choose([], [], [x]))]
    s.rng.shuffle(parts)
    s.give(f"torch.{s.choose('cat', 'cat', 'concat')}([{', '.join(parts)}], {axis})")


def cat_of_sizes(s: Scope) -> None:
    """Small values beside large ones, as boxes beside scores; the small ones may be read elsewhere, too."""
    x = s.pick(2, 3, 4)
    small, large = branch(s, x), branch(s, x)
    scaled = f"{large} * {s.choose(*LARGER)}" if s.happens(0.7) else f"{large} * {s.parameter(1)} * {s.choose(*LARGER)}"
    join = s.choose("torch.cat([{}, {}], 1)", "torch.cat([{}, {}], -1)", "torch.stack([{}, {}], 1)")
    joined = s.give(f"F.relu({join.format(small, scaled)})" if s.happens(0.3) else join.format(small, scaled))
    if s.happens(0.3):
        branch(s, joined)
    if s.happens(0.6):
        branch(s, small)


def token(s: Scope) -> None:
    """A learned token before the others."""
    x = s.pick(3)
    p = s.parameter(1, 1, s.shape(x)[2])
    s.give(f"torch.cat([{p}.expand({x}.shape[0], -1, -1), {x}], 1)")


def stack(s: Scope) -> None:
    x = s.pick(2, 3, 4)
    other = like(s, x, None)
    s.give(f"torch.stack([{x}, {other}], {s.choose(1, -1)})")


def residual(s: Scope) -> None:
    x = s.pick(2, 3, 4, 5)
    y = branch(s, x)
    s.give(s.choose(f"{x} + {y}", f"{y} + {x}", f"torch.add({x}, {y})", f"F.relu({y} + {x})", f"{x}.add({y})"))


def arithmetic(s: Scope) -> None:
    x = s.pick(2, 3, 4, 5)
    y = like(s, x, None)
    s.give(
        s.choose(
            f"{x} - {y}", f"{x} * {y}", f"torch.mul({x}, {y})", f"torch.maximum({x}, {y})", f"torch.minimum({x}, {y})"
        )
    )


def broadcast(s: Scope) -> None:
    x = s.pick(3, 4)
    y = s.give(f"{x}.mean({s.choose('-1', '1')}, keepdim=True)")
    s.give(s.choose(f"{x} - {y}", f"{x} + {y}", f"{y} * {x}", f"{x} * {x}[:, :1]"))


def product(s: Scope) -> None:
    x = s.pick(3, 4, where=lambda value: value.shape[-1] > 1)
    y = branch(s, x)
    s.give(
        s.choose(
            f"{x} @ {y}.transpose(-1, -2)",
            f"torch.matmul({x}, {y}.mT)",
            f"{x}.transpose(-1, -2) @ {y}",
            f"torch.einsum('...ik,...jk->...ij', {x}, {y})",
            *((f"torch.bmm({x}, {y}.transpose(1, 2))", f"torch.einsum('bik,bjk->bij', {x}, {y})") * (s.rank(x) == 3)),
        )
    )


INGREDIENTS = (
    Ingredient("cat", cat, (2, 3, 4, 5)),
    Ingredient("cat of small and large", cat_of_sizes, (2, 3, 4)),
    Ingredient("cat with a learned token", token, (3,)),
    Ingredient("stack", stack, (2, 3, 4)),
    Ingredient("residual", residual, (2, 3, 4, 5)),
    Ingredient("sub, mul, maximum, minimum", arithmetic, (2, 3, 4, 5)),
    Ingredient("broadcast", broadcast, (3, 4)),
    Ingredient("product of activations", product, (3, 4)),
)
