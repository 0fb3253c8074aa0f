"""When two graphs are the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import Graph

from fxquant.graph.same import is_same_graph


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
