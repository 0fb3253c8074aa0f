"""When two graphs are the same."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph

from fxquant.capture.graph_equality import is_same_graph
from fxquant.capture.tracing import trace


class Holder(nn.Module):
    def __init__(self, value: float, name: str = "a") -> None:
        super().__init__()
        self.register_buffer(name, torch.tensor([value, float("nan")]))


def graph(target=torch.add, attribute: str = "a", first: bool = True, number: float = 1, calls: int = 1) -> Graph:
    made = Graph()
    x = made.placeholder("x")
    constant = made.get_attr(attribute) if first else None
    y = x
    for _ in range(calls):
        y = made.call_function(torch.mul, (y, number))
    made.output((made.call_function(target, (y, constant or made.get_attr(attribute))),))
    return made


ROOT = Holder(1.0)


@pytest.mark.parametrize(
    ("other", "root"),
    [(graph(), ROOT), (graph(), Holder(1.0)), (graph(attribute="b", first=False), Holder(1.0, "b"))],
    ids=["itself", "equal values", "another name, read at another place"],
)
def test_the_same(other, root):
    assert is_same_graph(graph(), ROOT, other, root)


@pytest.mark.parametrize(
    ("other", "root"),
    [
        (graph(), Holder(2.0)),
        (graph(torch.sub), ROOT),
        (graph(number=2), ROOT),
        (graph(number=True), ROOT),
        (graph(calls=2), ROOT),
    ],
    ids=["another constant", "another function", "another number", "another type of number", "one more call"],
)
def test_another(other, root):
    assert not is_same_graph(graph(), ROOT, other, root)


def cut(stop: str = "half", step: int | None = None, number: float = float("nan")) -> Graph:
    """``x[:, :half:step] * number``, where half is one of two nodes."""
    made = Graph()
    x = made.placeholder("x")
    sizes = {name: made.call_method("size", (x, dim)) for name, dim in (("half", 0), ("other", 1))}
    part = made.call_function(operator.getitem, (x, (slice(None), slice(None, sizes[stop], step))))
    made.output((made.call_function(torch.mul, (part, number)),))
    return made


def test_slices_are_the_same_where_their_ends_are():
    assert is_same_graph(cut(), ROOT, cut(), ROOT)
    for other in (cut("other"), cut(step=2), cut(number=1.0)):
        assert not is_same_graph(cut(), ROOT, other, ROOT)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([float("nan"), 1.0], [float("nan"), 1.0], True),
        ([float("nan"), 1.0], [0.0, 1.0], False),
        ([float("inf")], [torch.finfo(torch.float32).max], False),
        ([1.0], [1.0 + 2**-23], False),
        ([complex("nan"), 1j], [complex("nan"), 1j], True),
        ([True, False], [True, False], True),
        ([1, 2], [1, 3], False),
    ],
)
def test_constants_are_the_same_value_by_value(one, other, same):
    roots = [nn.Module(), nn.Module()]
    for root, values in zip(roots, (one, other), strict=True):
        root.register_buffer("a", torch.tensor(values))
    assert is_same_graph(graph(), roots[0], graph(), roots[1]) is same


class KeptTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(4, 4), None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.ones(4)
        return self.linear(x[: x.size(0) // 2] + self.table)


def test_a_model_that_keeps_a_table_and_slices_by_a_size_is_traced():
    gm, x = trace(KeptTable().eval(), example_args=(torch.rand(8, 4),)), torch.rand(6, 4)
    assert torch.equal(gm(x), gm.linear(x[:3] + 1))
