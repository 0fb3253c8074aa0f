from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import GraphModule, symbolic_trace
from torchvision.ops import StochasticDepth

import fxquant as fxq
from fxquant.capture.tracing import trace
from fxquant.errors import user_line
from fxquant.graph.edit import (
    Emitter,
    add_module,
    drop_unused_modules,
    insert_after,
    positions,
    redirect_later_reads,
    rename,
    replace_node,
    retarget,
)
from fxquant.graph.query import CALLED, VALUE, module_path, nodes_by_name, value_of

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x, other=None):
        y = self.block(x)
        return y + 1, y.neg(), y


@pytest.fixture
def gm() -> GraphModule:
    return trace(Net(), example_args=(X,))


def test_retarget_keeps_name_place_readers_and_origin(gm):
    node = nodes_by_name(gm)["neg"]
    line = node.stack_trace
    retarget(node, "call_function", torch.exp, node.args)
    gm.graph.lint()
    gm.recompile()
    assert node.name == "neg"
    assert node.stack_trace == line
    assert gm.graph.find_nodes(op="call_function", target=torch.exp) == [node]
    assert torch.equal(gm(X)[1], gm(X)[2].exp())


def test_only_later_reads_are_redirected(gm):
    nodes = nodes_by_name(gm)
    relu, add, neg = nodes["block_1"], nodes["add"], nodes["neg"]
    redirect_later_reads(relu, neg, positions(gm.graph))
    assert add.args == (relu, 1)
    assert neg.args == (relu,)
    assert nodes["output"].args[0] == (add, neg, neg)


def test_add_module_finds_a_free_path(gm):
    nodes = nodes_by_name(gm)
    assert add_module(gm, "new", nn.ReLU()) == "new"
    assert add_module(gm, "new", nn.ReLU()) == "new_1"
    assert add_module(gm, "block.0", nn.ReLU()) == "block.0_1"
    assert add_module(gm, "block.1", nn.Tanh(), instead_of=[nodes["block_1"]]) == "block.1"
    assert isinstance(gm.get_submodule("block.1"), nn.Tanh)


def test_insert_after_an_input_stays_behind_all_inputs_and_their_guards(gm):
    nodes = nodes_by_name(gm)
    target = add_module(gm, "tanh", nn.Tanh())
    call = insert_after(nodes["x"], target, users=[nodes["block_0"]])
    gm.graph.lint()
    gm.recompile()
    assert [node.name for node in gm.graph.nodes][:4] == ["x", "other", "require_value", "tanh"]
    assert nodes["block_0"].args == (call,)


def test_replace_node_takes_over_name_and_readers(gm):
    nodes = nodes_by_name(gm)
    old = nodes["block_1"]
    with gm.graph.inserting_after(old):
        new = gm.graph.call_function(torch.tanh, old.args)
    replace_node(old, new)
    gm.graph.lint()
    assert new.name == "block_1"
    assert nodes["neg"].args == (new,)
    rename(new, "other_name")
    assert nodes_by_name(gm)["other_name"] is new


def test_drop_unused_modules(gm):
    gm.add_module("idle", nn.Linear(2, 2))
    drop_unused_modules(gm)
    assert [name for name, _ in gm.named_children()] == ["block"]


def test_a_wrapped_function_that_is_replaced_is_not_wrapped_again_under_its_new_name():
    # torch.fx notes it on the node; generated code would wrap "torch.nn.functional.dropout", and whoever traces any
    # model after that gets a KeyError.
    model = nn.Sequential(nn.Conv2d(2, 2, 1), StochasticDepth(0.5, "row")).eval()
    fxq.prepare(model, torch.rand(1, 2, 4, 4))
    assert len(symbolic_trace(nn.Sequential(nn.ReLU())).graph.nodes) == 3


class Scale(nn.Module):
    def forward(self, x):
        return x.transpose(0, 1) * 2


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.fc = Scale(), nn.Linear(3, 4)

    def forward(self, x):
        return self.fc(x), self.scale(x)


@pytest.fixture
def emit() -> Emitter:
    gm = trace(Scaled(), example_args=(torch.rand(2, 3),))
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
