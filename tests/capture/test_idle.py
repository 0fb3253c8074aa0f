"""Modules and functions that do nothing in evaluation mode become nodes, if they ask whether they train."""

from __future__ import annotations

import torch
from torch import nn

from fxquant.capture.tracing import trace
from fxquant.graph.query import ONLY_IN_TRAINING


def drop(x, p=0.5, training=True):
    return x if not training else x * p


def always(x, p=0.5, training=True):
    return x + 0 if not training else x * p


class Drop(nn.Module):
    def forward(self, x):
        return x * 0.5 if self.training else x


class Same(nn.Module):
    def forward(self, x):
        return x


class Second(nn.Module):
    def forward(self, x, y):
        return x * y if self.training else y


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.same, self.second = Drop(), Same(), Second()

    def forward(self, x, y):
        x = drop(self.drop(self.same(x)), 0.1, self.training)
        x = drop(x, training=self.training) + always(x, training=self.training)
        return x + self.second(x, y)


def test_what_becomes_a_node():
    x, y = torch.rand(2), torch.rand(2)
    model = Model().eval()
    gm = trace(model, example_args=(x, y))
    idle = [node for node in gm.graph.nodes if ONLY_IN_TRAINING in node.meta]
    assert [(node.op, node.target) for node in idle] == [
        ("call_module", "drop"),
        ("call_function", drop),
        ("call_function", drop),
    ]
    assert torch.equal(gm(x, y), model(x, y))
    assert drop.__code__.co_name == "drop"  # nothing is left of the trace
