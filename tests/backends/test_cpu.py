"""The CPU's table: every default pattern has a rule, and what it refuses has a reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.backends.cpu import CPU, byte_activation, byte_weight, int32_sums


def test_every_default_pattern_has_a_rule():
    assert [pattern.name for pattern in fxq.DEFAULT_PATTERNS if CPU.rule_for(pattern) is None] == []


def test_no_rule_is_for_nothing():
    known = {pattern.name for pattern in fxq.DEFAULT_PATTERNS}
    assert [name for rule in CPU.rules for name in rule.patterns if name not in known] == []


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [
        (fxq.QScheme(signed=False), None),
        (fxq.QScheme(bits=4, symmetric=True), None),
        (fxq.QScheme(bits=9), "9 bit activations do not fit a byte"),
        (
            fxq.QScheme(axis=0),
            "activations need one integer grid for the whole tensor, not int8 affine per channel (axis 0)",
        ),
    ],
)
def test_activations(scheme, reason):
    assert byte_activation(scheme) == reason


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [
        (fxq.QScheme(symmetric=True), None),
        (fxq.QScheme(symmetric=True, axis=0, bits=2), None),
        (fxq.QScheme(symmetric=True, bits=16), "16 bit weights do not fit a byte"),
        (
            fxq.QScheme(),
            "weights must be signed and symmetric (qscheme=torch.per_tensor_symmetric), not int8 affine per tensor",
        ),
        (
            fxq.QScheme(bits=4, axis=0),
            "weights must be signed and symmetric (qscheme=torch.per_channel_symmetric), "
            "not int4 affine per channel (axis 0)",
        ),
        (
            fxq.QScheme(signed=False, axis=0),
            "weights must be signed and symmetric (dtype=torch.int8, qscheme=torch.per_channel_symmetric), "
            "not uint8 affine per channel (axis 0)",
        ),
        (
            fxq.QScheme(symmetric=True, signed=False),
            "weights must be signed and symmetric (dtype=torch.int8), not uint8 symmetric per tensor",
        ),
        (
            fxq.QScheme(symmetric=True, axis=0, group_size=8),
            "weights with one scale per group have no integer operator; backend='reference' simulates them",
        ),
    ],
)
def test_weights(scheme, reason):
    assert byte_weight(scheme) == reason


def test_sums_that_could_overflow_stay_float():
    assert int32_sums(nn.Linear(65793, 1)) is None
    assert int32_sums(nn.Linear(65794, 1)) == ("65794 products per output can overflow an int32 sum; 65793 cannot")
    model = nn.Sequential(nn.Linear(65794, 1), nn.Linear(1, 2)).eval()
    prepared = fxq.prepare(model, torch.rand(1, 65794))
    assert [row.reason for row in prepared.coverage().float_rows] == [
        "backend 'cpu': 65794 products per output can overflow an int32 sum; 65793 cannot"
    ]


ARGUMENTS = {
    "max pool": nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "dilated max pool": nn.MaxPool2d(2, stride=1, dilation=2),
    "average pool": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "average pool with a divisor": nn.AvgPool2d((2, 3), stride=(1, 2), divisor_override=5),
    "adaptive pool": nn.AdaptiveAvgPool2d((3, 2)),
}
ONE_STEP = 1.001
"""Steps that int8 may be away from float behind one operator whose input is on the grid already."""


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
