"""Code that goes another way while it is traced: its graph is refused, and the model is exported."""

from __future__ import annotations

import enum
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import TracingError


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


X = torch.linspace(-1, 1, 2 * 5 * 8).reshape(2, 5, 8)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.right, self.wrong = nn.Linear(8, 8), nn.Linear(8, 8)


class ByMode(Two):
    def forward(self, x: Tensor, mode: Mode = Mode.FAST) -> Tensor:
        return self.right(x) if mode is Mode.FAST else self.wrong(x)


class ByDtype(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.right(x) if x.dtype is torch.float32 else self.wrong(x)


class ByKindOfSizes(Two):
    def forward(self, x: Tensor) -> Any:
        return {"y": self.right(x) if type(x.shape) is torch.Size else self.wrong(x)}


class ByKind(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.right(x) if type(x) is Tensor else self.wrong(x)


class ByChance(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.right(x) + torch.rand(())


@pytest.mark.parametrize("kind", [ByMode, ByDtype, ByKindOfSizes])
def test_what_goes_another_way_is_exported(kind):
    model = kind().eval()
    prepared = fxq.prepare(model, X)
    expected, got = model(X), prepared.graph_module(X)
    torch.testing.assert_close(got, expected)
    assert "captured by torch.export" in str(prepared.coverage())


def test_what_no_way_of_capture_gets_right_is_refused():
    with pytest.raises(TracingError) as caught:
        fxq.prepare(ByKind().eval(), X)
    assert str(caught.value) == (
        "the graph that torch.fx makes gives results of other values than the model\n"
        "  got:      float32[2, 5, 8]\n"
        "  expected: code that compares arguments, and what comes of them, by ==, and asks for kinds by isinstance\n"
        "  hint:     capture='export' may do; `is`, type() and issubclass() do not see what stands for a tensor or a "
        "number while a graph is made"
    )
    with pytest.raises(TracingError, match=r"^the graph that torch\.export makes gives results of other values"):
        fxq.prepare(ByKind().eval(), X, capture="export")


def test_results_by_chance_are_not_compared():
    assert fxq.prepare(ByChance().eval(), X).graph_module(X).shape == X.shape


# Tables that the user's code keeps.

TABLE: dict[Any, Any] = {}


@functools.cache
def positions(length: int) -> Tensor:
    return torch.arange(length).float()[:, None] / length


class Cached(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.right(x) * positions(x.shape[1])


class InTable(Two):
    def forward(self, x: Tensor) -> Tensor:
        key = (x.size(1), str(x.device), f"{x.shape[1]}")
        if key not in TABLE:
            TABLE[key] = torch.linspace(0, 1, x.shape[1])[:, None]
        return self.right(x) * TABLE[key]


class InTableOnce(Two):
    def forward(self, x: Tensor) -> Tensor:
        if "positions" not in TABLE:
            TABLE["positions"] = torch.linspace(0, 1, x.shape[1])[:, None]
        return self.right(x) * TABLE["positions"]


@pytest.mark.parametrize("kind", [Cached, InTable])
@pytest.mark.parametrize("ran_before", [False, True])
def test_a_table_that_a_trace_filled_harms_nobody(kind, ran_before):
    """Neither the next trace, of other sizes too, nor the float model."""
    TABLE.clear()
    positions.cache_clear()
    model = kind().eval()
    if ran_before:
        model(X)
    for x in (X, X[:, :3], X):
        prepared = fxq.prepare(model, x)
        expected = model(x)
        assert type(expected) is Tensor
        assert torch.equal(prepared.graph_module(x), expected)


def test_a_traced_value_that_is_read_later_is_named():
    TABLE.clear()
    model = InTableOnce().eval()
    fxq.prepare(model, X)
    for read in (lambda: fxq.prepare(model, X), lambda: model(X)):
        with pytest.raises(TracingError) as caught:
            read()
        what, at, got, expected, hint = str(caught.value).splitlines()
        assert what == (
            "the model's code keeps values between calls, and found one that was kept while another graph was traced"
        )
        assert at.startswith("  at:       ")
        assert at.endswith('return self.right(x) * TABLE["positions"]')
        assert (got, expected) == (
            "  got:      a traced value, not a tensor",
            "  expected: tables outside of the model (a global dict, a closure) that hold tensors",
        )
        assert hint == (
            "  hint:     empty the table, and call the model once before it is prepared, so that it is filled "
            "with tensors"
        )
    TABLE.clear()
    expected = model(X)
    for _ in range(2):
        assert torch.equal(fxq.prepare(model, X).graph_module(X), expected)
    TABLE.clear()
