from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.patterns.conv import CONV_PATTERNS, RESIDUAL_PATTERNS
from fxquant.patterns.pattern import Output
from fxquant.plan.spec import QScheme

CLOSE = 34
"""dB, for one or two roundings and a weight of 8 bits."""


def conv() -> nn.Conv2d:
    return nn.Conv2d(4, 4, 1)


def bn(**options) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(4, **options)


@pytest.mark.parametrize(
    ("body", "pattern", "inputs"),
    [
        (lambda m, x: m.conv(x), "conv", ("x",)),
        (lambda m, x: F.hardtanh(m.conv(x), -2, 2), "conv_act", ("x",)),
        (lambda m, x: m.bn(m.conv(x)), "conv_bn", ("x",)),
        (lambda m, x: F.relu6(m.bn(m.conv(x))), "conv_bn_act", ("x",)),
        (lambda m, x: m.conv(x) + x, "conv_add", ("x", "residual")),
        (lambda m, x: torch.relu(x + m.conv(x)), "conv_add_act", ("x", "residual")),
        (lambda m, x: x + m.bn(m.conv(x)), "conv_bn_add", ("x", "residual")),
        (lambda m, x: (m.bn(m.conv(x)) + x).relu_(), "conv_bn_add_act", ("x", "residual")),
    ],
)
def test_one_unit(plan_of, body, pattern, inputs):
    plan = plan_of(body, conv=conv(), bn=bn())
    assert [unit.pattern for unit in plan.units] == [pattern]
    assert plan.units[0].inputs == inputs
    assert set(plan.units[0].roles) == {*inputs, "weight", "mean", "y"}
    assert plan.refusals == ()


def test_every_pattern_quantizes_the_weight_of_the_convolution():
    assert {pattern.weight for pattern in CONV_PATTERNS + RESIDUAL_PATTERNS} == {"conv"}
    assert {pattern.output for pattern in CONV_PATTERNS + RESIDUAL_PATTERNS} == {Output.OBSERVED}


SIGNAL, VOLUME = torch.randn(2, 4, 12), torch.randn(2, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("x", "conv", "bn"),
    [
        (SIGNAL, nn.Conv1d(4, 6, 3, stride=2, padding=1), nn.BatchNorm1d(6)),
        (VOLUME, nn.Conv3d(4, 6, (1, 3, 3), padding="same"), nn.BatchNorm3d(6)),
    ],
    ids=["1d", "3d"],
)
def test_one_and_three_dimensions(forms_of, x, conv, bn):
    forms = forms_of(lambda m, x: torch.clamp(m.bn(m.conv(x)), max=2.0), x=x, conv=conv, bn=bn)
    assert forms.units == ["conv_bn_act"]
    assert forms.sqnr > CLOSE


@pytest.mark.parametrize(("x", "conv"), [(SIGNAL, nn.Conv1d(4, 4, 1)), (VOLUME, nn.Conv3d(4, 4, 1))])
def test_in_one_and_three_dimensions_the_residual_is_part_of_the_unit(forms_of, x, conv):
    forms = forms_of(lambda m, x: F.relu(m.conv(x) + x), x=x, conv=conv)
    assert forms.units == ["conv_add_act"]
    assert forms.sqnr > CLOSE


def test_a_batch_norm_along_another_axis_is_not_folded(forms_of):
    """Without a batch, [C, H, W] is [N, C, L] to a BatchNorm1d."""
    forms = forms_of(
        lambda m, x: m.bn(m.conv(x)), x=torch.randn(3, 6, 5), conv=nn.Conv2d(3, 4, 1), bn=nn.BatchNorm1d(6)
    )
    assert forms.units == ["conv", "bn"]
    assert forms.sqnr > CLOSE


def test_a_batch_norm_without_running_statistics_stays_float(plan_of):
    plan = plan_of(lambda m, x: m.bn(m.conv(x)), conv=conv(), bn=bn(track_running_stats=False))
    assert [unit.pattern for unit in plan.units] == ["conv"]
    assert [(r.node, r.pattern, r.reason, r.excused) for r in plan.refusals] == [
        ("bn", "bn", "batch norm keeps no running statistics (track_running_stats=False)", False)
    ]


def test_a_weighted_sum_is_no_residual(plan_of):
    plan = plan_of(lambda m, x: torch.add(m.conv(x), x, alpha=2), conv=conv())
    assert [unit.pattern for unit in plan.units] == ["conv"]
    assert [(r.node, r.reason) for r in plan.refusals] == [("add", "alpha=2: only a plain sum has an integer form")]


def test_a_residual_that_is_a_number_is_no_tensor(plan_of):
    plan = plan_of(lambda m, x: m.conv(x) + 1, conv=conv())
    assert [unit.pattern for unit in plan.units] == ["conv", "add_number"]


@pytest.mark.parametrize("part", ["conv", "bn"])
def test_hooks_keep_a_module_in_float(plan_of, part):
    modules = {"conv": conv(), "bn": bn(), "first": conv()}
    modules[part].register_forward_hook(lambda module, args, out: out + 1)
    plan = plan_of(lambda m, x: m.bn(m.conv(m.first(x))), **modules)
    assert [unit.root for unit in plan.units] == (["first", "bn"] if part == "conv" else ["first", "conv"])
    reasons = {refusal.node: refusal.reason for refusal in plan.refusals}
    assert reasons[part] == "it has hooks, which only a float module runs"


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
    assert [r.reason for r in plan.refusals] == ["it is called with an output_size of its own"]
