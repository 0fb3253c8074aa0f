"""Code that may tell a marked ``self.training`` from False by identity is found wherever a model can reach it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.capture.identity_checks import asks_by_identity

X = torch.rand(8, 4)


def by_module(module: nn.Module, y: Tensor) -> Tensor:
    return y if module.training is False else 2 * y


def by_argument(y: Tensor, training: bool) -> Tensor:
    return 2 * y if training is not False else y


def by_other_name(y: Tensor, flag: bool) -> Tensor:
    return y if flag is False else 2 * y


def handed_on(y: Tensor, flag: bool) -> Tensor:
    return by_other_name(y, flag)


def yoda(module: nn.Module, y: Tensor) -> Tensor:
    return y if False is module.training else 2 * y


def matched(module: nn.Module, y: Tensor) -> Tensor:
    match module.training:
        case True:
            return 3 * y
        case False:
            return y
    return 2 * y


def typed(module: nn.Module, y: Tensor) -> Tensor:
    return y if isinstance(module.training, bool) else 2 * y


def by_getattr(module: nn.Module, y: Tensor) -> Tensor:
    mode = getattr(module, "training")  # noqa: B009
    return y if mode is False else 2 * y


def nested(module: nn.Module, y: Tensor) -> Tensor:
    def inner() -> Tensor:
        return y if module.training is False else 2 * y

    return inner()


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return function(*args)

    return run


class Helper:
    """No module."""

    def choose(self, module: nn.Module, y: Tensor) -> Tensor:
        return y if module.training is False else 2 * y

    def __call__(self, module: nn.Module, y: Tensor) -> Tensor:
        return self.choose(module, y)


wrapped = decorated(by_module)
others = SimpleNamespace(by_module=by_module)

BODIES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a function": lambda m, y: by_module(m, y),
    "a function that takes it": lambda m, y: by_argument(y, m.training),
    "under another name": lambda m, y: by_other_name(y, m.training),
    "handed on": lambda m, y: handed_on(y, m.training),
    "the constant first": lambda m, y: yoda(m, y),
    "a match": lambda m, y: matched(m, y),
    "its type": lambda m, y: typed(m, y),
    "by getattr": lambda m, y: by_getattr(m, y),
    "a function inside": lambda m, y: nested(m, y),
    "a decorated function": lambda m, y: wrapped(m, y),
    "an object": lambda m, y: Helper()(m, y),
    "an attribute of an object": lambda m, y: others.by_module(m, y),
    "the function itself": by_module,
    "a partial": functools.partial(by_module),
    "a property": lambda m, y: y if m.evaluates else 2 * y,
    "a static method": lambda m, y: m.chosen(y, m.training),
    "a submodule": lambda m, y: m.block(y, m.training),
}


class Block(nn.Module):
    def forward(self, y: Tensor, flag: bool) -> Tensor:
        return by_other_name(y, flag)


class Plain(nn.Module):
    """A layer with something behind it; ``layer`` alone is quantized."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.body = nn.Linear(4, 8), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, self.layer(x))


class Model(Plain):
    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__(body)
        self.block = Block()

    @property
    def evaluates(self) -> bool:
        return self.training is False

    @staticmethod
    def chosen(y: Tensor, flag: bool) -> Tensor:
        return y if flag is False else 2 * y


@pytest.mark.parametrize("name", BODIES)
def test_it_is_found_and_evaluation_mode_is_traced(name: str) -> None:
    torch.manual_seed(0)
    model = Model(BODIES[name]).train()
    assert asks_by_identity(model)
    qat = fxq.prepare_qat(model, X).eval()
    qat(X)
    qat.apply(fxq.disable_observer).apply(fxq.disable_fake_quant)
    assert torch.allclose(qat(X), model.eval()(X))


def compared_with_none(y: Tensor, other: Tensor | None = None, training: bool = False) -> Tensor:
    return F.dropout(y, 0.5, training) if other is None else y + other


def compares_something_else(y: Tensor, flag: bool = False) -> Tensor:
    return y if flag is False else 2 * y


OTHERS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "None": lambda m, y: compared_with_none(y, None, m.training),
    "nothing": lambda m, y: F.dropout(y, 0.5, m.training),
    "without a word of training": lambda m, y: compares_something_else(y, False),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_comparisons_are_left_alone(name: str) -> None:
    assert not asks_by_identity(Plain(OTHERS[name]))


class Odd:
    """Has attributes that nobody can list."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("not now")


def in_circles() -> list[Any]:
    items: list[Any] = [1, "a", torch.ones(2)]
    items.append(items)
    table: dict[str, Any] = {"items": items}
    table["table"] = table
    helper = Helper()
    helper.again = functools.partial(helper)  # type: ignore[attr-defined]
    return [items, table, helper]


def test_attributes_that_hold_each_other() -> None:
    model = Plain(OTHERS["nothing"])
    model.kept = in_circles()[:-1]  # without the helper, which asks
    assert not asks_by_identity(model)
    fxq.prepare_qat(model.train(), X)
    model.kept = Odd()
    assert not asks_by_identity(model)
    model = Plain(lambda m, y: m.kept[2](m, y))
    model.kept = in_circles()
    assert asks_by_identity(model)
