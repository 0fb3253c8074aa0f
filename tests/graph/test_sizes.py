"""Which sizes never change, told by graphs that run on other sizes too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.capture.tracing import trace
from fxquant.graph.sizes import asks_for_rank, fixed_dimensions, source_of_rank
from fxquant.passes.base import PassContext
from fxquant.passes.normalize import normalize


class Body(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.LayerNorm((4, 6))
        self.conv, self.up, self.bn = nn.Conv2d(3, 3, 1), nn.ConvTranspose1d(4, 4, 1), nn.BatchNorm2d(3)
        self.table = nn.Parameter(torch.rand(1, 4, 6))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def fixed(body, x: Tensor) -> set[int]:
    gm = trace(Body(body).eval(), example_args=(x,))
    ctx: PassContext | None = None
    normalize(gm, ctx)
    known = fixed_dimensions(gm.graph)
    *_, last, _ = gm.graph.nodes
    return set(known[last])


X = torch.rand(2, 4, 6)
IMAGE = torch.rand(2, 3, 5, 5)


@pytest.mark.parametrize(
    ("body", "x", "dims"),
    [
        (lambda m, x: m.linear(x), X, {2}),
        (lambda m, x: m.norm(x), X, {1, 2}),
        (lambda m, x: F.layer_norm(x, (6,)), X, {2}),
        (lambda m, x: F.layer_norm(x, x.shape[1:]), X, set()),
        (lambda m, x: m.conv(x), IMAGE, {1}),
        (lambda m, x: m.conv(x), IMAGE[0], {0}),
        (lambda m, x: m.up(x), X, {1}),
        (lambda m, x: m.bn(x), IMAGE, {1}),
        (lambda m, x: F.gelu(m.linear(x)).contiguous(), X, {2}),
        (lambda m, x: x + m.table, X, {1, 2}),  # of which dimension 0 has size 1, and says nothing
        (lambda m, x: m.table + m.table, X, {0, 1, 2}),
        (lambda m, x: m.linear(x) + x, X, {2}),
        (lambda m, x: m.linear(x) * 2, X, {2}),
        (lambda m, x: x[0, 0] + m.linear(x), X, {2}),
        (lambda m, x: torch.relu(x), X, set()),
        (lambda m, x: m.linear(x).clamp(0, 1), X, {2}),
        (lambda m, x: torch.clamp(m.table[0, 0], min=m.linear(x)), X, {2}),  # the batch of x, which the table has not
        (lambda m, x: torch.clamp(m.table, max=x), X, {1, 2}),
        (lambda m, x: torch.clamp(x, m.table, max=m.linear(x)), X, {1, 2}),
        (lambda m, x: m.table.clamp(min=m.table[0], max=x[0, 0]), X, {0, 1, 2}),
        (lambda m, x: m.linear(x).transpose(1, 2), X, set()),
        (lambda m, x: F.pad(m.linear(x), (1, 1)), X, set()),
    ],
)
def test_fixed_dimensions(body, x, dims):
    assert fixed(body, x) == dims


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(6, 6), nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        return self.linear(h) * torch.clamp(self.table, min=h).size(0)


def test_a_batch_size_that_a_bound_brings_in_is_asked_for_in_each_call():
    model = Clamped().eval()
    gm = fxq.prepare(model, torch.rand(32, 6)).graph_module
    x = torch.rand(3, 6)
    torch.testing.assert_close(gm(x), model(x))


def test_the_number_of_dimensions_is_asked_of_what_a_layer_reads():
    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.norm(self.conv(torch.relu(x + 1)))
            return torch.relu(y), y.dim(), (x + 2).ndim

    gm = trace(Checked().eval(), example_args=(torch.rand(1, 3, 4, 4),))
    asked = [node for node in gm.graph.nodes if asks_for_rank(node)]
    assert [source_of_rank(node.args[0]).name for node in asked] == ["relu", "add_1"]
