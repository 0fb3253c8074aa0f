from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph

from fxquant.patterns.activation import ACTIVATION, CLAMPS, clamp_of, clamped
from fxquant.patterns.pattern import Op, Output, op, tensor
from fxquant.spec import Clamp, SharedWith, TensorRef


@pytest.mark.parametrize(
    ("target", "bounds", "expected"),
    [
        (F.relu, (), Clamp(0.0, None)),
        (F.relu6, (), Clamp(0.0, 6.0)),
        (F.hardtanh, (-1.0, 1.0), Clamp(-1.0, 1.0)),
        (F.hardtanh, (-2, 3), Clamp(-2.0, 3.0)),
    ],
)
def test_the_bounds_of_a_node(target, bounds, expected):
    graph = Graph()
    node = graph.call_function(target, (graph.placeholder("x"), *bounds))
    assert clamp_of(node) == expected
    assert type(clamp_of(node).low) is float


def test_every_clamp_has_a_pattern_of_its_own():
    assert {target for pattern in ACTIVATION for target in pattern.root.targets} == set(CLAMPS)
    assert {pattern.output for pattern in ACTIVATION} == {Output.CLAMPED}


def test_clamped_means_any_clamp():
    inner = op(nn.Linear)(tensor("x"))
    assert clamped(inner) == Op((F.relu, F.relu6, F.hardtanh), (inner,), name="act")


@pytest.mark.parametrize(
    ("spelling", "pattern"),
    [
        (nn.ReLU(), "relu"),
        (nn.ReLU6(inplace=True), "relu6"),
        (nn.Hardtanh(-2, 2), "hardtanh"),
        (nn.Hardtanh(0.0, 6.0), "relu6"),
    ],
)
def test_alone_it_keeps_the_grid_of_its_input(plan_behind_conv, spelling, pattern):
    plan = plan_behind_conv(nn.Sequential(nn.MaxPool2d(2), spelling))
    assert [unit.pattern for unit in plan.units] == ["conv", "max_pool2d", pattern]
    unit = plan.units[-1]
    assert plan.policies[unit.roles["y"]] == SharedWith(TensorRef("reader_0"))
    assert plan.grid_owner(unit.roles["y"]) == TensorRef("conv")
