"""Transposed convolutions: found, with scales per output channel, and exact."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.plan.spec import QScheme

CLOSE = 34
"""dB, for one rounding and a weight of 8 bits."""


def transposed(*args, **options) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(*args, **options)


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        (lambda m, x: m.up(x), "conv_transpose"),
        (lambda m, x: F.relu(m.up(x)), "conv_transpose_act"),
        (lambda m, x: m.bn(m.up(x)), "conv_transpose_bn"),
        (lambda m, x: F.relu6(m.bn(m.up(x))), "conv_transpose_bn_act"),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_with_batch_norm_and_clamp(forms_of, body, pattern, groups):
    forms = forms_of(body, up=transposed(4, 6, 3, stride=2, groups=groups), bn=nn.BatchNorm2d(6))
    assert forms.units == [pattern]
    assert forms.sqnr > CLOSE


@pytest.mark.parametrize(
    ("x", "up", "bn"),
    [
        ((2, 4, 9), nn.ConvTranspose1d(4, 3, 4, stride=3, padding=1, output_padding=1), nn.BatchNorm1d(3)),
        ((2, 4, 3, 4, 5), nn.ConvTranspose3d(4, 6, 2, stride=2, groups=2), nn.BatchNorm3d(6)),
    ],
    ids=["1d", "3d"],
)
def test_in_one_and_three_dimensions(forms_of, x, up, bn):
    x = torch.randn(x, generator=torch.Generator().manual_seed(0))
    forms = forms_of(lambda m, x: F.relu(m.bn(m.up(x))), x=x, up=up, bn=bn)
    assert forms.units == ["conv_transpose_bn_act"]
    assert forms.sqnr > CLOSE


@pytest.mark.parametrize(
    ("up", "axis", "scales"),
    [
        (transposed(3, 4, 3, stride=2), 1, 4),
        (transposed(4, 6, 3, groups=2), 1, 3),
        (transposed(4, 4, 3, groups=4), 0, 4),
    ],
    ids=["one group", "groups", "depthwise"],
)
@pytest.mark.parametrize("by_scheme", [False, True])
def test_a_weight_has_a_scale_per_output_channel(up, axis, scales, by_scheme):
    config = None
    if by_scheme:
        weight = fxq.PerChannelMinMaxObserver.with_args(scheme=QScheme(symmetric=True, axis=0))
        config = fxq.QConfig(fxq.get_default_qconfig().activation, weight)
    x = torch.rand(1, up.in_channels, 5, 5)
    prepared = fxq.prepare(nn.Sequential(up).eval(), x, config).calibrate([x], progress=False)
    plan = fxq.convert(prepared).quant_plan
    qparams = plan.qparams[plan.units[0].roles["weight"]]
    assert (qparams.scheme.axis, len(qparams.scale)) == (axis, scales)


def test_an_output_size_per_call_stays_float(plan_of):
    plan = plan_of(lambda m, x: m.up(m.conv(x), [13, 13]), conv=nn.Conv2d(4, 4, 1), up=transposed(4, 4, 3, stride=2))
    assert [unit.pattern for unit in plan.units] == ["conv"]
    assert [r.reason for r in plan.rejections] == ["it is called with an output_size of its own"]
