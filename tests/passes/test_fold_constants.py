"""Constants that are changed in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq


class Net(nn.Module):
    def __init__(self, function: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(6))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def part_of_a_bias_is_zero(net: Net, x: Tensor) -> Tensor:
    bias = net.bias.clone()
    length = bias.numel() // 3
    bias[length : 2 * length].zero_()
    return F.linear(x, net.weight, bias)


def written_into_zeros(net: Net, x: Tensor) -> Tensor:
    bias = torch.zeros_like(net.bias)
    bias[1] = 2.0
    bias[2:].add_(net.bias[2:])
    return F.linear(x, net.weight, bias)


def read_before_the_change(net: Net, x: Tensor) -> Tensor:
    bias = net.bias.clone()
    y = F.linear(x, net.weight, bias)
    bias.zero_()
    return y + F.linear(x, net.weight, bias)


def changed_by_an_input(net: Net, x: Tensor) -> Tensor:
    bias = net.bias.clone()
    bias[0] = x.sum()
    return F.linear(x, net.weight, bias)


def changes_a_parameter(net: Net, x: Tensor) -> Tensor:
    bias = net.bias.detach()
    bias.mul_(1.0)
    return F.linear(x, net.weight, bias)


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(5, 4)


@pytest.mark.parametrize("function", [part_of_a_bias_is_zero, written_into_zeros])
def test_what_is_settled_is_a_layer_and_nothing_of_the_changes_is_left(function, x):
    net = Net(function).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    prepared = fxq.prepare(net, x, strict=True)
    (unit,) = prepared.plan.units
    assert unit.pattern == "linear"
    assert [node.op for node in prepared.graph.nodes] == ["placeholder", "call_module", "output"]
    assert torch.equal(prepared(x), net(x))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("function", [read_before_the_change, changed_by_an_input, changes_a_parameter])
def test_what_may_differ_stays_as_it_is(function, x):
    net = Net(function).eval()
    model = nn.Sequential(net, nn.Linear(6, 2)).eval()
    prepared = fxq.prepare(model, x)
    assert torch.equal(prepared(x), model(x))
    assert torch.equal(prepared(2 * x), model(2 * x))
    assert not [name for name, _ in prepared.graph_module.named_buffers() if "_folded_" in name]
