"""Inputs that models meet: other batches, other memory, other numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.fuzz.source import Input, draw

Values = tuple[Tensor, ...]

SPECIAL = {"NaN": float("nan"), "infinite": float("inf"), "huge": 3e38, "denormal": 1e-40}
"""Numbers that are put between others."""


def values_of(inputs: tuple[Input, ...], seed: int, batch: int | None = None) -> Values:
    """Arguments for a model, of the sizes that it was made with but for the batch."""
    return tuple(_value(each, seed + number, batch) for number, each in enumerate(inputs))


def _value(each: Input, seed: int, batch: int | None) -> Tensor:
    shape = each.shape if batch is None else (batch, *each.shape[1:])
    if each.high:
        return torch.randint(0, each.high, shape, generator=torch.Generator().manual_seed(seed))
    return draw(seed, *shape)


def _of_floats(change: Callable[[Tensor], Tensor]) -> Callable[[tuple[Input, ...], int], Values]:
    def make(inputs: tuple[Input, ...], seed: int) -> Values:
        return tuple(change(value) if value.is_floating_point() else value for value in values_of(inputs, seed))

    return make


def every_other(x: Tensor) -> Tensor:
    """The same numbers in memory twice as long."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), 7.0)
    wide[..., ::2] = x
    return wide[..., ::2]


def transposed(x: Tensor) -> Tensor:
    return x.transpose(1, -1).contiguous().transpose(1, -1)


def channels_last(x: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else transposed(x)


def expanded(x: Tensor) -> Tensor:
    """One row that stands for the whole batch."""
    return x[:1].expand_as(x)


def offset(x: Tensor) -> Tensor:
    """Memory that begins behind that of another tensor."""
    return torch.cat([x.flatten()[:3], x.flatten()])[3:].view(x.shape)


def aliased(inputs: tuple[Input, ...], seed: int) -> Values:
    """Arguments of one shape lie in one memory, the second a row behind the first."""
    made: list[Tensor] = []
    rows: dict[torch.Size, Tensor] = {}
    for number, value in enumerate(values_of(inputs, seed)):
        if value.is_floating_point():
            shared = rows.setdefault(value.shape, draw(seed, value.shape[0] + 1, *value.shape[1:]))
            made.append(shared[number % 2 :][: value.shape[0]])
        else:
            made.append(value)
    return tuple(made)


def special(number: float) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        flat = x.flatten()
        flat[::5] = number
        flat[1::10] = -number
        return flat.view(x.shape)

    return change


VARIANTS: dict[str, Callable[[tuple[Input, ...], int], Values]] = {
    "other values": values_of,
    "other batch": lambda inputs, seed: values_of(inputs, seed, inputs[0].shape[0] + 1),
    "batch of one": lambda inputs, seed: values_of(inputs, seed, 1),
    "strided": _of_floats(every_other),
    "transposed": _of_floats(transposed),
    "channels last": _of_floats(channels_last),
    "expanded": _of_floats(expanded),
    "with an offset": _of_floats(offset),
    "aliased": aliased,
    "empty": lambda inputs, seed: values_of(inputs, seed, 0),
    **{name: _of_floats(special(number)) for name, number in SPECIAL.items()},
    "zero": _of_floats(torch.zeros_like),
}
"""Kind of input -> the arguments, of a seed."""

NOT_DENSE = ("strided", "transposed", "channels last", "expanded")
"""Those whose numbers do not lie one after the other."""
LIE_OTHERWISE = (*NOT_DENSE, "with an offset")
"""Those of which a copy does not lie in memory as they do."""
MEMORY = ("other values", "other batch", "batch of one", *NOT_DENSE)
"""Those whose numbers are ordinary, and not few."""
