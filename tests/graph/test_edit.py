from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import GraphModule, symbolic_trace
from torchvision.ops import StochasticDepth

import fxquant as fxq
from fxquant.capture.tracing import trace
from fxquant.graph.edit import (
    add_module,
    drop_unused_modules,
    insert_after,
    positions,
    redirect_later_reads,
    rename,
    replace_node,
    retarget,
)
from fxquant.graph.query import nodes_by_name

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
