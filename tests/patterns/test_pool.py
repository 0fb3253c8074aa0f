from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxquant.plan.spec import Observed, SharedWith, TensorRef


@pytest.mark.parametrize(
    ("body", "pattern", "shared"),
    [
        (lambda x: F.max_pool2d(x, 2), "max_pool2d", True),
        (nn.MaxPool2d(2, ceil_mode=True), "max_pool2d", True),
        (nn.AvgPool2d(2, divisor_override=3), "avg_pool2d", False),
        (lambda x: F.adaptive_avg_pool2d(x, (1, 2)), "adaptive_avg_pool2d", False),
        (lambda x: x.mean((2, 3), keepdim=True), "mean", False),
        (lambda x: torch.mean(x), "mean", False),
    ],
)
def test_a_maximum_keeps_the_grid_of_its_input_an_average_has_its_own(plan_behind_conv, body, pattern, shared):
    plan = plan_behind_conv(body)
    assert [unit.pattern for unit in plan.units] == ["conv", pattern]
    policy = plan.policies[plan.units[-1].roles["y"]]
    assert policy == SharedWith(TensorRef("conv")) if shared else isinstance(policy, Observed)


def test_a_mean_in_another_precision_stays_float(plan_behind_conv):
    plan = plan_behind_conv(lambda x: x.mean(1, dtype=torch.float32))
    assert [unit.pattern for unit in plan.units] == ["conv"]
    assert [(r.node, r.pattern, r.reason) for r in plan.refusals] == [
        ("mean", "mean", "dtype is given: the mean is wanted in another precision")
    ]


def test_a_pool_that_also_gives_indices_stays_float(plan_behind_conv):
    plan = plan_behind_conv(lambda x: F.max_pool2d(x, 2, return_indices=True)[0])
    assert [unit.pattern for unit in plan.units] == ["conv"]
