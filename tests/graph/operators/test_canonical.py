from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxquant.capture.tracing import trace
from fxquant.graph.operators.canonical import canonical_target, operator_of, spellings


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
