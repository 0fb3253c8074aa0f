"""The CPU's table: every default pattern has one rule, and what it builds gets the arguments of the call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.backends.cpu import CPU


def test_every_default_pattern_has_a_rule():
    assert [pattern.name for pattern in fxq.DEFAULT_PATTERNS if CPU.rule_for(pattern) is None] == []


def test_no_rule_is_for_nothing():
    known = {pattern.name for pattern in fxq.DEFAULT_PATTERNS}
    assert [name for rule in CPU.rules for name in rule.patterns if name not in known] == []


def test_no_pattern_has_two_rules():
    names = [name for rule in CPU.rules for name in rule.patterns]
    assert len(names) == len(set(names))


ARGUMENTS = {
    "max pool": nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "dilated max pool": nn.MaxPool2d(2, stride=1, dilation=2),
    "average pool": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "average pool with a divisor": nn.AvgPool2d((2, 3), stride=(1, 2), divisor_override=5),
    "adaptive pool": nn.AdaptiveAvgPool2d((3, 2)),
}
ONE_STEP = 1.001
"""Steps that int8 may be away from float behind one operator whose input is rounded already."""


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_pools_reach_the_operator(name):
    model = nn.Sequential(nn.Conv2d(2, 3, 1), ARGUMENTS[name]).eval()
    x = torch.rand(2, 2, 9, 7)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    with torch.no_grad():
        int8, simulated = fxq.convert(prepared)(x), fxq.convert(prepared, to="fake_quant")(x)
    assert int8.shape == model(x).shape
    step = max(
        float(q.scale) for ref, q in fxq.convert(prepared).quant_plan.qparams.items() if ref.kind == "activation"
    )
    assert float((int8 - simulated).abs().max()) <= ONE_STEP * step
