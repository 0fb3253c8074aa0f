"""What int8 operators accept: what they refuse has a reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.backends.accepts import byte_activation, byte_weight, int32_accumulators


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [
        (fxq.QScheme(signed=False), None),
        (fxq.QScheme(bits=4, symmetric=True), None),
        (fxq.QScheme(bits=9), "9 bit activations do not fit a byte"),
        (
            fxq.QScheme(axis=0),
            "activations are integers with one scale for the whole tensor, not int8 affine per channel (axis 0)",
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
    assert int32_accumulators(nn.Linear(65793, 1)) is None
    assert int32_accumulators(nn.Linear(65794, 1)) == (
        "65794 products per output can overflow an int32 sum; 65793 cannot"
    )
    model = nn.Sequential(nn.Linear(65794, 1), nn.Linear(1, 2)).eval()
    prepared = fxq.prepare(model, torch.rand(1, 65794))
    assert [row.reason for row in prepared.coverage().float_rows] == [
        "backend 'cpu': 65794 products per output can overflow an int32 sum; 65793 cannot"
    ]
