from __future__ import annotations

import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.analysis.naming import path_of, title_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.kernel = Block(), nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.block(x), self.kernel) * 2


def test_layers_go_by_their_path_and_functions_by_their_place_and_value() -> None:
    nodes = {node.name: node for node in fxq.prepare(Net().eval(), torch.randn(2, 4)).graph.nodes}
    found = {name: (path_of(node), title_of(node, name)) for name, node in nodes.items()}
    assert found["block_fc"] == ("block.fc", "block.fc")
    assert found["add"] == ("block", "block (add)")
    assert ("kernel", "kernel") in found.values()
    assert found["x"] == ("", "x")
