"""Assignments to items: ``y[:, a:b] = v``, by numbers, steps, masks and lists; and tensors filled piece by piece."""

from __future__ import annotations

from tests.fuzz.ingredients.table import Ingredient
from tests.fuzz.scope import NoValueError, Scope


def target(s: Scope, *ranks: int) -> str:
    """A value of memory of its own with more than one channel, which an assignment may change."""
    x = s.pick(*ranks, where=lambda value: value.is_contiguous() and value.shape[1] > 1)
    y = s.give(s.choose("{} * 1.5", "{} + 0.25", "{}.clone()", "F.relu({})", "torch.zeros_like({}) + {}").format(x, x))
    if s.belongs_to_an_input(y):
        raise NoValueError
    if s.happens(0.15):
        s.give(f"{y}[:, :1]")  # a view that sees the change
    return y


def key(s: Scope, y: str) -> str:
    """Slices and numbers of any dimension but the batch's."""
    rank = s.rank(y)
    items = [":"] * rank
    for axis in {s.rng.randrange(1, rank), s.rng.randrange(1, rank)}:
        size = s.shape(y)[axis]
        first = s.rng.randrange(size)
        last = s.rng.randint(first + 1, size)
        forms = [
            f"{first}:{last}",
            f"{first - size}:{last - size if last < size else ''}",
            f"{first}",
            f"{first - size}",
        ]
        forms += [f"{first}:", f":{last}", f"-{last}:", "::2", "1::2", f"slice({first}, {last})"]
        items[axis] = s.choose(*forms)
    if items[-1] != ":" and items[1:-1] == [":"] * (rank - 2) and s.happens():
        return f"..., {items[-1]}"
    while items[-1] == ":" and s.happens():
        items.pop()
    return ", ".join(items)


def value(s: Scope, y: str, where: str) -> str:
    """What is assigned: a number, a part of the tensor itself, of another value, of a parameter, one for all places."""
    region = eval(f"y[{where}]", {"y": s.values[y]}).shape
    if 0 in region or len(region) < 1:
        raise NoValueError
    other = s.pick(s.rank(y)) if s.happens(0.7) else y
    forms = ["0", "0.5", f"{y}[{where}] * 0.5", f"-{y}[{where}]", f"torch.zeros({tuple(region[1:])})"]
    if s.shape(other) == s.shape(y):
        forms += [f"{other}[{where}]"] * 2 + [f"F.relu({other}[{where}])"] * 2
    if len(region) == s.rank(y):
        forms += [f"{other}[:, :1]", f"{other}.mean({tuple(range(1, len(region)))}, keepdim=True)"]
    if len(region) > 1 and s.happens(0.1):
        return s.parameter(*region[1:])
    return s.choose(*forms)


def item(s: Scope) -> None:
    """One assignment, or two that may overlap."""
    y = target(s, 2, 3, 4, 5)
    for _ in range(s.choose(1, 1, 2)):
        where = key(s, y)
        s.run(
            s.choose("{}[{}] = {}", "{}[{}] = {}", "{}[{}].copy_({} + {}[{}])", "{}[{}] += {}", "{}[{}] *= {}").format(
                y, where, value(s, y, where), y, where
            )
        )
    if s.happens():
        s.give(f"{y} * 0.5")


def filled(s: Scope) -> None:
    """A new tensor that is filled piece by piece, in any order, by layers of one value."""
    x = s.pick(2, 3, 4)
    rank, width = s.rank(x), s.shape(x)[1]
    first = s.rng.randint(1, 3)
    sizes = ", ".join([f"{x}.shape[0]", str(first + width), *(f"{x}.shape[{axis}]" for axis in range(2, rank))])
    new = s.choose(
        "torch.zeros({})", "torch.empty({})", f"{x}.new_zeros({{}})", f"{x}.new_empty(({{}}))", "torch.full(({}), 0.5)"
    )
    y = s.give(new.format(sizes))
    pieces = [f"{y}[:, {first}:] = {x}", f"{y}[:, :{first}] = {s.choose('0.25', f'{x}[:, :1]', f'{x}[:, -1:] * 0.5')}"]
    if s.happens():
        pieces.reverse()
    for piece in pieces:
        s.run(piece)
    s.give(f"{y} * 0.5" if s.happens() else f"F.relu({y})")


def masked(s: Scope) -> None:
    """By masks, lists of numbers, and tensors of them."""
    y = target(s, 2, 3, 4)
    last = s.shape(y)[1] - 1
    mask = s.choose(f"{y} > 0.5", f"{y}.abs() < 0.25", f"{y}.isnan()")
    s.run(
        s.choose(
            f"{y}[{mask}] = {s.choose('0', '0.25', '-0.5')}",
            f"{y}[:, [{last}, 0]] = {y}[:, [0, {last}]]",
            f"{y}[:, torch.tensor([{last}, 0])] = {s.choose('0.5', f'{y}[:, :1]')}",
            f"{y}[:, torch.arange({last + 1}) % 2 == 0] *= 0.5",
            f"{y}.masked_fill_({mask}, 0.25)",
            f"{y}.index_fill_(1, torch.tensor([{last}]), 0.5)",
        )
    )
    if s.happens():
        s.give(f"{y} * 0.5")


INGREDIENTS = (
    Ingredient("item assignment", item, (2, 3, 4, 5)),
    Ingredient("tensor filled by pieces", filled, (2, 3, 4)),
    Ingredient("assignment by masks and lists", masked, (2, 3, 4)),
)
