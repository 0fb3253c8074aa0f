from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

CLOSE = 34
"""dB, for one or two roundings and a weight of 8 bits."""


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        (lambda m, x: m.fc(x), "linear"),
        (lambda m, x: F.relu(m.fc(x)), "linear_act"),
        (lambda m, x: F.hardtanh(m.fc(x), -1, 2), "linear_act"),
    ],
)
@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 3, 6)], ids=str)
def test_one_unit_for_inputs_of_any_rank(plan_of, body, pattern, shape):
    plan = plan_of(body, x=torch.rand(shape), fc=nn.Linear(6, 3))
    assert [(unit.pattern, unit.inputs) for unit in plan.units] == [(pattern, ("x",))]
    assert plan.units[0].roles["weight"].name == f"fc.weight@{plan.units[0].root}"
    assert plan.rejections == ()


def test_a_linear_layer_read_twice_keeps_its_value(plan_of):
    plan = plan_of(lambda m, x: F.relu(y := m.fc(x)) * y, x=torch.rand(2, 6), fc=nn.Linear(6, 3))
    assert [unit.pattern for unit in plan.units] == ["linear", "relu", "mul"]


def test_a_batch_norm_of_features_is_folded(forms_of):
    modules = {"fc": nn.Linear(6, 5), "bn": nn.BatchNorm1d(5)}
    forms = forms_of(lambda m, x: F.relu6(m.bn(m.fc(x))), x=torch.randn(32, 6), **modules)
    assert forms.units == ["linear_bn_act"]
    assert forms.sqnr > CLOSE
    assert forms_of(lambda m, x: m.bn(m.fc(x)), x=torch.randn(32, 6), **modules).units == ["linear_bn"]


def test_a_batch_norm_of_positions_is_not(forms_of):
    """[N, L, F] is [N, C, L] to a BatchNorm1d: here its channels are the positions."""
    forms = forms_of(lambda m, x: m.bn(m.fc(x)), x=torch.randn(8, 3, 6), fc=nn.Linear(6, 5), bn=nn.BatchNorm1d(3))
    assert forms.units == ["linear", "bn"]
    assert forms.sqnr > CLOSE
