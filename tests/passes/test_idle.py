"""Calls that were noted stand where they stood once they are put back, whatever else read what they read."""

from __future__ import annotations

import torch
from torch import nn
from torch.fx import symbolic_trace

from fxquant.passes.idle import drop_restored, record, restore_idle, take_out


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Dropout(0.5), nn.Dropout(0.25)

    def forward(self, x):
        y = self.one(x)
        z = self.two(y)
        return torch.cat([x, z, x]) + y, z.type_as(y)


def test_taking_out_and_putting_back():
    gm = symbolic_trace(Chain())
    before = gm.graph.python_code("self").src
    idle = [node for node in gm.graph.nodes if node.name in ("one", "two", "type_as")]
    calls = [record(node, idle) for node in idle]
    for node in idle:
        take_out(node)
    names = [node.name for node in gm.graph.nodes]
    assert names == ["x", "cat", "add", "output"]
    restore_idle(gm, calls)
    gm.graph.lint()
    assert gm.graph.python_code("self").src == before
    drop_restored(gm, calls)
    assert [node.name for node in gm.graph.nodes] == names
