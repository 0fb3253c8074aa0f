"""Hooks of modules that are traced through: those that only look are warned of, those that compute are traced."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning

X = torch.rand(2, 4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.last = Block(), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.block(x))


@pytest.mark.parametrize("way", ["pre", "post", "with kwargs"])
def test_a_hook_that_only_looks_is_warned_of(way):
    model, seen = Net().eval(), []
    if way == "pre":
        model.block.register_forward_pre_hook(lambda module, args: seen.append(1))
    elif way == "post":
        model.block.register_forward_hook(lambda module, args, result: seen.append(1))
    else:
        model.block.register_forward_hook(lambda module, args, kwargs, result: seen.append(1), with_kwargs=True)
    with pytest.warns(FxQuantWarning) as caught:
        prepared = fxq.prepare(model, X)
    assert [str(warning.message) for warning in caught] == [
        "hooks that only look at values ran once, while the model was traced, and will not run again\n"
        "  got:      block\n"
        '  hint:     leaf_modules=("block",) keeps a module whole and in float, with its hooks'
    ]
    assert torch.equal(prepared(X), model(X))


def test_the_hint_of_that_warning_works():
    model, seen = Net().eval(), []
    model.block.register_forward_hook(lambda module, args, result: seen.append(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared = fxq.prepare(model, X, leaf_modules=("block",)).calibrate([X], progress=False)
    int8, before = fxq.convert(prepared), len(seen)
    int8(X), int8(X)
    assert len(seen) == before + 2


def test_a_hook_that_computes_is_part_of_the_graph():
    model = Net().eval()
    model.block.register_forward_hook(lambda module, args, result: result * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared = fxq.prepare(model, X)
    assert torch.equal(prepared(X), model(X))


def test_hooks_of_layers_and_of_the_model_run_in_every_call():
    model, seen = Net().eval(), []
    model.last.register_forward_hook(lambda module, args, result: seen.append("last"))
    model.register_forward_pre_hook(lambda module, args: seen.append("model"))
    int8 = fxq.convert(fxq.prepare(model, X).calibrate([X], progress=False))
    seen.clear()
    int8(X)
    int8(X)
    assert seen == ["model", "last"] * 2
