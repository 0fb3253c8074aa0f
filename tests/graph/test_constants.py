"""Which values a graph computes anew, and which are the same in every call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.capture.tracing import trace
from fxquant.graph.constants import Constants, NotConstantError

X = torch.ones(2, 3)


class Holder(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.function(self, x)


def traced(function: Callable[..., Tensor]) -> GraphModule:
    return trace(Holder(function).eval(), example_args=(X,))


def factor(gm: GraphModule) -> object:
    """The second operand of the last product."""
    return list(gm.graph.nodes)[-2].args[1]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda m, x: m.weight, [1.0, 2.0, 3.0]),
        (lambda m, x: (m.weight * m.scale).flip(0), [6.0, 4.0, 2.0]),
        (lambda m, x: m.weight + torch.ones(3), [2.0, 3.0, 4.0]),
        (lambda m, x: torch.stack([m.weight, m.weight]).sum(0), [2.0, 4.0, 6.0]),
    ],
)
def test_expressions_of_parameters_and_buffers(function, expected):
    gm = traced(function)
    assert Constants(gm).value(factor(gm)).tolist() == expected


def test_a_parameter_comes_as_it_is():
    gm = traced(lambda m, x: m.weight)
    assert Constants(gm).value(factor(gm)) is gm.weight
    assert Constants(gm).value([factor(gm), 3, None]) == [gm.weight, 3, None]


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.weight * x[0, 0],
        lambda m, x: m.weight * x.shape[0],
        lambda m, x: m.weight * torch.rand_like(m.weight),
        lambda m, x: m.weight * m.scale.mul_(2),
        lambda m, x: (m.weight, m.weight.view(3).mul_(2))[0],
    ],
    ids=["input", "size", "random", "changed", "changed through a view"],
)
def test_what_may_differ_from_call_to_call(function):
    gm = traced(function)
    with pytest.raises(NotConstantError):
        Constants(gm).value(factor(gm))


def test_random_numbers_are_left_as_they_were():
    gm = traced(lambda m, x: torch.rand_like(m.weight))
    before = torch.random.get_rng_state()
    with pytest.raises(NotConstantError):
        Constants(gm).value(factor(gm))
    assert torch.equal(torch.random.get_rng_state(), before)
