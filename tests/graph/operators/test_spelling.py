from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from fxquant.capture.tracing import trace
from fxquant.graph.operators.spelling import Call, canonical_call, canonical_target, operator_of, spellings

X = torch.linspace(-1, 1, 32).reshape(2, 4, 2, 2)


def call_of(function, leaf_types=(), **parts) -> Call | None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, x):
            return function(self, x)

    gm = trace(Net(), example_args=(X,), leaf_types=leaf_types)
    return canonical_call(list(gm.graph.nodes)[1])


def test_target_arguments_and_keywords():
    call = call_of(lambda self, x: torch.sub(x, 2, alpha=3))
    assert call is not None
    assert (call.target, call.args[1:], call.kwargs) == (torch.sub, (2,), {"alpha": 3})


def test_shape_given_as_one_node():
    class Net(nn.Module):
        def forward(self, x, like):
            return x.view(like.shape), x.reshape(like.size(0))

    gm = trace(Net(), example_args=(X, torch.zeros(32)))
    nodes = {node.name: node for node in gm.graph.nodes}
    assert canonical_call(nodes["view"]).args == (nodes["x"], nodes["getattr_1"])
    assert canonical_call(nodes["reshape"]).args == (nodes["x"], (nodes["size"],))


def test_no_call_is_read_where_the_table_does_not_say_all():
    assert call_of(lambda self, x: x.size(0)) is None
    assert call_of(lambda self, x: F.max_pool2d(x, 1, return_indices=True)) is None
    assert call_of(lambda self, x: self.conv(x), conv=nn.Conv2d(4, 4, 1)) is None
    assert call_of(lambda self, x: torch.add(x, 1, out=x)) is None


def test_a_type_that_a_pattern_names_stays_a_module():
    class Mine(nn.ReLU):
        pass

    assert call_of(lambda self, x: self.act(x), act=Mine()).target is F.relu
    assert call_of(lambda self, x: self.act(x), leaf_types=(Mine,), act=Mine()) is None
    assert call_of(lambda self, x: self.act(x), leaf_types=(nn.ReLU,), act=nn.ReLU()).target is F.relu


def test_regularizers_of_torchvision_that_do_nothing_are_dropouts_that_do_nothing():
    idle = [
        call_of(lambda self, x: self.drop(x), drop=torchvision.ops.StochasticDepth(0.2, "row").eval()),
        call_of(lambda self, x: self.drop(x), drop=torchvision.ops.DropBlock2d(0.2, 1).eval()),
    ]
    assert [(call.target, call.args[1:], call.kwargs) for call in idle] == [(F.dropout, (0.2, False), {})] * 2
    assert call_of(lambda self, x: self.drop(x), drop=torchvision.ops.StochasticDepth(0.2, "row").train()) is None


@pytest.mark.parametrize(
    ("canonical", "others"),
    [
        (F.relu, [nn.ReLU, torch.relu, torch.relu_, "relu", "relu_"]),
        (F.relu6, [nn.ReLU6]),
        (F.hardtanh, [nn.Hardtanh, F.hardtanh_]),
        (torch.add, [operator.add, operator.iadd, "add", "add_"]),
        (torch.mul, [operator.mul, torch.multiply, "mul_"]),
        (torch.cat, [torch.concat, torch.concatenate]),
        (torch.flatten, [nn.Flatten, "flatten"]),
        (torch.reshape, ["reshape", "view"]),
        (torch.mean, ["mean"]),
        (F.max_pool2d, [nn.MaxPool2d, torch.max_pool2d]),
        (F.avg_pool2d, [nn.AvgPool2d]),
        (F.adaptive_avg_pool2d, [nn.AdaptiveAvgPool2d]),
        (torch.sigmoid, [nn.Sigmoid, F.sigmoid, "sigmoid"]),
        (torch.tanh, [nn.Tanh, F.tanh, "tanh_"]),
        (F.hardswish, [nn.Hardswish]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_spelling_has_one_canonical_target(canonical, others):
    assert canonical_target(canonical) is canonical
    assert {canonical_target(other) for other in others} == {canonical}


@pytest.mark.parametrize("target", [nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.Dropout, nn.Identity, len, "size"])
def test_what_has_one_spelling_stays(target):
    assert canonical_target(target) is target


def test_an_unhashable_target_is_no_known_operator():
    class Unhashable:
        __hash__ = None

        def __call__(self):
            return None

    assert operator_of(Unhashable()) is None


def test_spellings_of_a_node():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(self.conv(x)).size(0)

    gm = trace(Net(), example_args=(torch.zeros(1, 3, 4, 4),))
    names = {node.name: spellings(node) for node in gm.graph.nodes}
    assert names["conv"] == (nn.Conv2d,)
    assert {nn.ReLU, F.relu, torch.relu, "relu"} <= set(names["act"])
    assert names["size"] == ("size",)
    assert names["x"] == names["output"] == ()
