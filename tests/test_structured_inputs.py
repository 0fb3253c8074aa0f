"""Inputs that are lists, tuples and dicts: code takes them apart, and the traced module refuses other structures."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.capture.tracing import trace
from fxquant.errors import InputError

A, B = torch.ones(2, 3), torch.full((2, 3), 2.0)
Pair = namedtuple("Pair", ["left", "right"])


class Fn(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, batch: Any) -> Any:
        return self.function(batch)


TAKES_APART = {
    "a loop": (lambda batch: sum(x * i for i, x in enumerate(batch)), [A, B], [B, B]),
    "a length": (lambda batch: batch[0] * len(batch), (A, B), (B, A)),
    "a named tuple": (lambda batch: batch.left - batch.right, Pair(A, B), Pair(B, A)),
    "a named tuple inside": (lambda batch: sum(batch[0]) * len(batch[0]), [Pair(A, B)], [Pair(B, A)]),
    "items of a dict": (lambda batch: [key + str(len(batch)) for key in batch] and batch["b"], {"a": A, "b": B}, None),
    "a key that is there": (lambda batch: batch["a"] * 2 if "a" in batch else None, {"a": A}, {"a": B}),
    "a key that is not": (lambda batch: batch["a"] if batch.get("mask") is None else None, {"a": A}, {"a": B}),
    "None inside": (lambda batch: batch[1] if batch[0] is None else batch[0], [None, A], [None, B]),
    "nested": (lambda batch: batch["pairs"][0][1] + batch["pairs"][1][0], {"pairs": [(A, B), (B, A)]}, None),
    "numbers stay free": (lambda batch: batch[0] * batch[1], [A, 2], [B, 3]),
    "given back whole": (lambda batch: {"all": batch, "first": batch[0]}, [A, (B,)], [B, (A,)]),
}


@pytest.mark.parametrize("name", TAKES_APART)
def test_code_may_take_arguments_apart(name):
    function, example, other = TAKES_APART[name]
    gm = trace(Fn(function), example_args=(example,))
    for batch in (example, other or example):
        got, expected = gm(batch), function(batch)
        assert str(got) == str(expected)
        assert type(got) is type(expected)


REFUSED = {
    "more items": (lambda batch: sum(batch), [A, B], [A, B, A]),
    "fewer items": (lambda batch: sum(batch), [A, B], [A]),
    "another flag": (
        lambda batch: batch["x"] if batch["flag"] else -batch["x"],
        {"x": A, "flag": True},
        {"x": A, "flag": False},
    ),
    "another mode": (lambda batch: batch[0] if batch[1] == "a" else -batch[0], [A, "a"], [A, "b"]),
    "a key more": (lambda batch: batch["a"] if batch.get("mask") is None else None, {"a": A}, {"a": A, "mask": B}),
    "no None": (lambda batch: batch[1] if batch[0] is None else batch[0], [None, A], [B, A]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_structure_is_refused(name):
    function, example, other = REFUSED[name]
    gm = trace(Fn(function), example_args=(example,))
    gm(example)
    with pytest.raises(InputError, match="prepare"):
        gm(other)


def test_spread_arguments():
    class Spread(nn.Module):
        def forward(self, first: Any, *rest: Any, scale: float = 1.0, **named: Any) -> Any:
            return first + sum(rest) * scale + sum(named.values())

    gm = trace(Spread(), example_args=(A, B, B), example_kwargs={"bias": A})
    assert [node.target for node in gm.graph.nodes if node.op == "placeholder"] == [
        "first",
        "*rest",
        "scale",
        "**named",
    ]
    assert torch.equal(gm(B, A, A, bias=B, scale=3.0), Spread()(B, A, A, bias=B, scale=3.0))
    with pytest.raises(InputError):
        gm(A, B)
    with pytest.raises(InputError):
        gm(A, B, B)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
        y = self.linear(x)
        y = y if mask is None else y * mask
        return y if scale is None else y * scale


@pytest.mark.parametrize("form", ["int8", "fake_quant", "reference"])
def test_an_optional_argument_may_not_be_left_out_later(form):
    prepared = fxq.prepare(Masked().eval(), (A, B, 2.0))
    prepared(A, B, 2.0)
    with pytest.raises(InputError, match="the inputs hold no tensor for the argument 'mask'"):
        prepared(A)
    converted = fxq.convert(prepared, to=form)
    assert converted(A, B, 3.0).shape == A.shape
    for name, given in {"mask": {"scale": 2.0}, "scale": {"mask": B}}.items():
        with pytest.raises(InputError, match=f"the argument '{name}' was given when the model was prepared, and is"):
            converted(A, **given)


def test_the_guard_of_an_optional_argument_is_exported():
    int8 = fxq.convert(fxq.calibrate(fxq.prepare(Masked().eval(), (A, B)), [(A, B)], progress=False))
    expected = int8(A, B)
    exported = torch.export.export(int8, (A, B)).module()
    assert torch.equal(exported(A, B), expected)


class Repeated(nn.Module):
    def forward(self, x: Any, times: int = 2, scale: float = 2.0) -> Any:
        for _ in range(times):
            x = x * scale
        return x


def test_a_number_is_fixed_only_where_code_needs_it():
    gm = trace(Repeated(), example_args=(A, 3))
    assert torch.equal(gm(A, 3), A * 8)
    with pytest.raises(InputError, match=r"for _ in range\(times\)"):
        gm(A, 4)
    assert torch.equal(gm(A, 3, 4.0), A * 64)
    gm = trace(Fn(lambda batch: batch[0] * batch[1]), example_args=([A, 3],))
    assert torch.equal(gm([A, 4]), A * 4)
