"""What moves values without computing: slices, steps, transposes, flips, reshapes."""

from __future__ import annotations

from tests.fuzz.ingredients.table import Ingredient
from tests.fuzz.scope import NoValueError, Scope


def slice_of(s: Scope, size: int, *, steps: bool) -> str:
    """A slice that leaves something."""
    first = s.choose(0, 0, 1) if size > 2 else 0
    step = s.choose(2, 3) if steps else 1
    last = s.choose("", "", "-1") if size - first > 2 else ""
    return f"{first or ''}:{last}" + (f":{step}" if step > 1 else "")


def sliced(s: Scope, *, steps: bool) -> str:
    x = s.pick(where=lambda value: value.dim() >= 2 and max(value.shape[1:]) > 1)
    rank = s.rank(x)
    where = s.choose(*(axis for axis in range(1, rank) if s.shape(x)[axis] > 1))
    chosen = slice_of(s, s.shape(x)[where], steps=steps)
    if chosen == ":":
        chosen = ":-1"
    if where == rank - 1 and s.happens():
        return s.give(f"{x}[..., {chosen}]")
    rest = tuple(
        ":" if axis < where or s.happens(0.7) else slice_of(s, s.shape(x)[axis], steps=False)
        for axis in range(rank)
        if axis != where
    )
    return s.give(f"{x}[{', '.join((*rest[:where], chosen, *rest[where:]))}]")


def plain_slice(s: Scope) -> None:
    sliced(s, steps=False)


def step_slice(s: Scope) -> None:
    sliced(s, steps=True)


def narrow(s: Scope) -> None:
    x = s.pick(where=lambda value: value.dim() >= 2 and value.shape[-1] > 1)
    size = s.shape(x)[-1]
    length = s.rng.randint(1, size - 1)
    start = s.rng.randint(0, size - length)
    whole = s.choose("{}.narrow(-1, {}, {})", "torch.narrow({}, -1, {}, {})")
    s.give(whole.format(x, start, length))


def select(s: Scope) -> None:
    x = s.pick(3, 4, 5)
    axis = s.axis(x)
    s.give(s.choose(f"{x}.select({axis}, 0)", f"{x}[:, -1]", f"{x}[..., 0]"))


def chunk(s: Scope) -> None:
    x = s.pick(2, 3, 4, 5, where=lambda value: max(value.shape[1:]) > 1)
    axis = s.choose(*(axis for axis in range(1, s.rank(x)) if s.shape(x)[axis] > 1))
    size = s.shape(x)[axis]
    count = min(size, s.choose(2, 2, 3))
    pieces = len(s.values[x].chunk(count, axis))
    s.gives(s.choose(f"{x}.chunk({count}, {axis})", f"torch.chunk({x}, {count}, dim={axis - s.rank(x)})"), pieces)


def split(s: Scope) -> None:
    x = s.pick(2, 3, 4, 5, where=lambda value: max(value.shape[1:]) > 1)
    axis = s.choose(*(axis for axis in range(1, s.rank(x)) if s.shape(x)[axis] > 1))
    first = s.rng.randint(1, s.shape(x)[axis] - 1)
    sizes = [first, s.shape(x)[axis] - first]
    s.gives(s.choose(f"{x}.split({sizes}, {axis})", f"torch.split({x}, {sizes}, dim={axis})"), 2)


def unbind(s: Scope) -> None:
    x = s.pick(3, 4, 5, where=lambda value: min(value.shape[1:]) <= 4)
    axis = s.choose(*(axis for axis in range(1, s.rank(x)) if s.shape(x)[axis] <= 4))
    s.gives(f"{x}.unbind({axis})", s.shape(x)[axis])


def expand(s: Scope) -> None:
    x = s.pick(1, 2, 3, 4)
    if s.rank(x) > 1 and 1 in s.shape(x)[1:]:
        sizes = ["-1" if size != 1 or axis == 0 else str(s.choose(2, 3)) for axis, size in enumerate(s.shape(x))]
        s.give(f"{x}.expand({', '.join(sizes)})")
    else:
        axis = s.rng.randint(1, s.rank(x))
        sizes = ["-1"] * (s.rank(x) + 1)
        sizes[axis] = str(s.choose(2, 3))
        s.give(f"{x}.unsqueeze({axis}).expand({', '.join(sizes)})")


def repeat(s: Scope) -> None:
    x = s.pick(2, 3, 4)
    times = [1, *(s.choose(1, 2) for _ in range(s.rank(x) - 1))]
    s.give(s.choose(f"{x}.repeat({', '.join(map(str, times))})", f"torch.repeat_interleave({x}, 2, dim=-1)"))


def transpose(s: Scope) -> None:
    x = s.pick(3, 4, 5)
    rank = s.rank(x)
    a, b = s.rng.sample(range(1, rank), 2)
    order = [0, *s.rng.sample(range(1, rank), rank - 1)]
    s.give(
        s.choose(
            f"{x}.transpose({a}, {b - rank})",
            f"{x}.permute({', '.join(map(str, order))})",
            f"torch.permute({x}, {tuple(order)})",
            f"{x}.movedim({a}, {b})",
            f"{x}.swapaxes({a}, {b})",
            f"{x}.mT",
        )
    )


def batch_away(s: Scope) -> None:
    """The batch goes behind the steps, as recurrent layers want it, and comes back."""
    x = s.pick(3)
    s.give(f"F.relu({x}.transpose(0, 1)).transpose(0, 1)")


def flip(s: Scope) -> None:
    x = s.pick(2, 3, 4, 5)
    axis = s.axis(x)
    s.give(
        s.choose(
            f"{x}.flip({axis})", f"torch.flip({x}, ({axis},))", f"{x}.roll(1, {axis})", f"torch.roll({x}, -1, {axis})"
        )
    )


def flatten(s: Scope) -> None:
    x = s.pick(3, 4, 5)
    start = s.rng.randint(1, s.rank(x) - 2)
    s.give(
        s.choose(
            f"{x}.flatten({start})",
            f"torch.flatten({x}, 1)",
            f"{x}.reshape({x}.shape[0], -1)",
            f"{x}.reshape({x}.size(0), {s.shape(x)[1]}, -1)",
        )
    )


def unflatten(s: Scope) -> None:
    x = s.pick(2, 3, where=lambda value: value.shape[-1] % 2 == 0 or value.shape[-1] % 3 == 0)
    size = s.shape(x)[-1]
    part = s.choose(*(n for n in (2, 3) if size % n == 0))
    s.give(
        s.choose(
            f"{x}.unflatten(-1, ({part}, -1))",
            f"{x}.reshape(*{x}.shape[:-1], {part}, {size // part})",
        )
    )


def squeeze(s: Scope) -> None:
    x = s.pick(2, 3, 4)
    ones = [axis for axis, size in enumerate(s.shape(x)) if size == 1 and axis]
    s.give(f"{x}.squeeze({s.choose(*ones)})" if ones else s.choose(f"{x}.unsqueeze(-1)", f"{x}[:, None]"))


def indexed(s: Scope) -> None:
    x = s.pick(2, 3, 4, where=lambda value: value.shape[1] > 1)
    last = s.shape(x)[1] - 1
    s.give(
        s.choose(
            f"{x}[:, [{last}, 0]]",
            f"torch.index_select({x}, 1, torch.tensor([0, {last}, 0]))",
            f"{x}[:, torch.arange({last}, -1, -1)]",
        )
    )


def window(s: Scope) -> None:
    """A crop, by sizes that are read while running."""
    x = s.pick(4)
    if min(s.shape(x)[2:]) < 3:
        raise NoValueError
    s.give(f"{x}[:, :, 1:{x}.shape[2] - 1, 1:{x}.shape[3] - 1]")


def halves(s: Scope) -> None:
    """Rotary embeddings: the second half, negated, before the first."""
    x = s.pick(3, 4, where=lambda value: value.shape[-1] % 2 == 0)
    half = s.shape(x)[-1] // 2
    p = s.parameter(s.shape(x)[-1])
    s.give(f"{x} * torch.cos({p}) + torch.cat([-{x}[..., {half}:], {x}[..., :{half}]], -1) * torch.sin({p})")


INGREDIENTS = (
    Ingredient("slice", plain_slice, (2, 3, 4, 5)),
    Ingredient("slice with a step", step_slice, (2, 3, 4, 5)),
    Ingredient("narrow", narrow, (2, 3, 4)),
    Ingredient("select", select, (3, 4, 5)),
    Ingredient("chunk", chunk, (2, 3, 4)),
    Ingredient("split", split, (2, 3, 4)),
    Ingredient("unbind", unbind, (3, 4)),
    Ingredient("expand", expand, (2, 3, 4)),
    Ingredient("repeat", repeat, (2, 3, 4)),
    Ingredient("transpose, permute, movedim", transpose, (3, 4, 5)),
    Ingredient("batch second", batch_away, (3,)),
    Ingredient("flip, roll", flip, (2, 3, 4)),
    Ingredient("flatten, reshape", flatten, (3, 4, 5)),
    Ingredient("unflatten", unflatten, (2, 3)),
    Ingredient("squeeze, unsqueeze", squeeze, (2, 3, 4)),
    Ingredient("indexing", indexed, (2, 3, 4)),
    Ingredient("crop", window, (4,)),
    Ingredient("rotary embedding", halves, (3, 4)),
)
