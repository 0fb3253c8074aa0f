"""Batch norm that follows no convolution: a unit of its own, exact but for the rounding of its output."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxquant.patterns.floats import OWN_STATISTICS
from tests.sampling import one_of

CLOSE = 40
"""dB: nothing of the batch norm itself is rounded."""


@pytest.mark.parametrize(
    ("bn", "shape"),
    one_of(
        3,
        [
            (nn.BatchNorm1d(5), (16, 5)),
            (nn.BatchNorm1d(5), (4, 5, 7)),
            (nn.BatchNorm2d(5), (2, 5, 6, 7)),
            (nn.BatchNorm3d(5), (2, 5, 3, 4, 5)),
            (nn.BatchNorm2d(5, affine=False, eps=0.01), (2, 5, 6, 7)),
            (nn.SyncBatchNorm(5), (16, 5)),
            (nn.SyncBatchNorm(5), (4, 5, 7)),
            (nn.SyncBatchNorm(5), (2, 5, 6, 7)),
            (nn.SyncBatchNorm(5), (2, 5, 3, 4, 5)),
        ],
    ),
    ids=["1d, features", "1d", "2d", "3d", "2d, not affine", *(f"sync, {dims}" for dims in ("features", *"123"))],
)
def test_alone_and_with_a_clamp(forms_of, bn, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    alone = forms_of(lambda m, x: m.bn(x), x=x, bn=bn)
    assert alone.units == ["bn"]
    assert alone.sqnr > CLOSE - 6
    clamped = forms_of(lambda m, x: F.relu(m.bn(F.relu(x) - 1)), x=x, bn=bn)
    assert clamped.units == ["relu", "sub_number", "bn_act"]


def test_a_batch_norm_before_its_convolution(forms_of):
    """As in DenseNet: norm, ReLU, convolution."""
    body = lambda m, x: m.conv(F.relu(m.bn(torch.cat([x, m.first(x)], 1))))  # noqa: E731
    forms = forms_of(body, first=nn.Conv2d(4, 4, 1), bn=nn.BatchNorm2d(8), conv=nn.Conv2d(8, 4, 1))
    assert forms.units == ["conv", "cat", "bn_act", "conv"]
    assert forms.sqnr > CLOSE - 6


def test_without_running_statistics_it_stays_float(plan_behind_conv):
    plan = plan_behind_conv(nn.Sequential(nn.MaxPool2d(2), nn.BatchNorm2d(4, track_running_stats=False)))
    assert [unit.pattern for unit in plan.units] == ["conv"]
    assert [r.reason for r in plan.refusals if not r.excused] == [
        "batch norm keeps no running statistics (track_running_stats=False)"
    ]


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.InstanceNorm1d(5, track_running_stats=True), (4, 5, 7)),
        (nn.InstanceNorm2d(5, affine=True, track_running_stats=True), (2, 5, 6, 7)),
        (nn.InstanceNorm3d(5, affine=True, track_running_stats=True), (2, 5, 3, 4, 5)),
    ],
    ids=["1d", "2d", "3d"],
)
def test_an_instance_norm_with_running_statistics_is_a_batch_norm(forms_of, norm, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    forms = forms_of(lambda m, x: m.norm(x), x=x, norm=norm)
    assert forms.units == ["instance_norm"]
    assert forms.sqnr > CLOSE - 6


@pytest.mark.parametrize(
    ("norm", "take", "reason"),
    [
        (nn.InstanceNorm2d(4), lambda x: x, OWN_STATISTICS),
        (nn.InstanceNorm1d(4, affine=True), lambda x: x.flatten(2), OWN_STATISTICS),
        (
            nn.InstanceNorm2d(4, track_running_stats=True),
            lambda x: x[0],
            "without a batch dimension its channels are dimension 0",
        ),
    ],
)
def test_other_instance_norms_stay_float(plan_of, norm, take, reason):
    plan = plan_of(lambda m, x: m.norm(take(m.conv(x))), conv=nn.Conv2d(4, 4, 1), norm=norm)
    assert [(r.pattern, r.reason) for r in plan.refusals if not r.excused] == [("instance_norm", reason)]
