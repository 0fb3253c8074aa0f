"""Sizes that never change are numbers; others stay what they are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq


class Scaled(nn.Module):
    """Attention's scale as people write it."""

    def __init__(self, body) -> None:
        super().__init__()
        self.norm, self.linear, self.last, self.heads = nn.RMSNorm(8), nn.Linear(8, 8), nn.Linear(8, 8), 2
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.last(self.linear(x) * self.body(self, x))


X = torch.rand(2, 3, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x: (x.shape[2] // m.heads) ** -0.5,
        lambda m, x: (x.size(-1) // m.heads) ** -0.5,
        lambda m, x: (x.size()[2] // m.heads) ** -0.5,
        lambda m, x: 1 / math.sqrt(x.shape[-1]),
        lambda m, x: float(x.shape[-1]) ** -0.5,
    ],
)
def test_a_number_of_fixed_sizes_is_a_number(body):
    model = Scaled(body).eval()
    prepared = fxq.prepare(model, X)
    assert [unit.pattern for unit in prepared.plan.units] == ["linear", "rescale", "linear"]
    (scale,) = (node for node in prepared.graph.nodes if node.target is torch.mul)
    assert scale.args[1] == body(model, X)
    assert "shape" not in prepared.graph_module.code
    longer = torch.rand(3, 5, 8)
    with torch.no_grad():
        assert torch.equal(prepared(longer), model(longer))


@pytest.mark.parametrize("body", [lambda m, x: x.shape[1] ** -0.5, lambda m, x: x.shape[0] + x.shape[2]])
def test_other_sizes_are_asked_for_in_every_call(body):
    model = Scaled(body).eval()
    prepared = fxq.prepare(model, X)
    assert "rescale" not in [unit.pattern for unit in prepared.plan.units]
    longer = torch.rand(3, 5, 8)
    with torch.no_grad():
        assert torch.equal(prepared(longer), model(longer))


def test_a_size_that_is_returned_is_a_number_too():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, int, int]:
            y = self.linear(x)
            return y, y.shape[-1], y.shape[0]

    prepared = fxq.prepare(Net().eval(), X)
    assert prepared(torch.rand(5, 8))[1:] == (4, 5)
