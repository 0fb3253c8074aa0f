"""New nodes: in the canonical spelling, at the place of another, with what is known of their values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.capture.tracing import trace
from fxquant.errors import user_line
from fxquant.graph.emit import Emitter
from fxquant.graph.query import CALLED, VALUE, module_path, value_of


class Scale(nn.Module):
    def forward(self, x):
        return x.transpose(0, 1) * 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.fc = Scale(), nn.Linear(3, 4)

    def forward(self, x):
        return self.fc(x), self.scale(x)


@pytest.fixture
def emit() -> Emitter:
    gm = trace(Net(), example_args=(torch.rand(2, 3),))
    return Emitter(gm, next(node for node in gm.graph.nodes if node.name == "mul"), {"mark": 1})


def test_nodes_take_the_place_of_another_and_are_spelled_canonically(emit):
    turned = emit.place.args[0]
    node = emit.method("view", turned.args[0], 6)
    assert (node.op, node.target, node.args) == ("call_function", torch.reshape, (turned.args[0], (6,)))
    assert node.next is emit.place
    assert user_line(node) == user_line(emit.place)
    assert module_path(node) == ("scale", None)
    assert node.meta["mark"] == 1


def test_values_are_inferred_without_running_anything(emit):
    turned = emit.place.args[0]
    assert not value_of(turned).contiguous
    assert str(value_of(emit.function(torch.mul, turned, 2.0))) == "float32[3, 2]"
    assert str(value_of(emit.function(torch.gt, turned, 0))) == "bool[3, 2]"
    assert not value_of(emit.function(torch.unsqueeze, turned, 0)).contiguous
    assert value_of(emit.function(torch.flatten, turned)).device == torch.device("cpu")
    pair = emit.function(torch.split, turned, 2)
    assert [str(info) for info in pair.meta[VALUE]] == ["float32[2, 2]", "float32[1, 2]"]


def test_a_value_may_be_given(emit):
    x = emit.place.args[0].args[0]
    size = emit.method("size", x, 0, value=int)
    assert size.meta[VALUE] is int
    fc = emit.module("fc", x, value=value_of(x), meta={CALLED: ("fc", nn.Linear)})
    assert module_path(fc) == ("fc", nn.Linear)
    with pytest.raises(TypeError, match="the value of size is no tensor: say what the result is"):
        emit.method("new_ones", x, (size, 2))
