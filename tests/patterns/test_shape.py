from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.patterns.pattern import Output
from fxquant.patterns.shape import SHAPE
from fxquant.spec import SharedWith, TensorRef


def test_all_keep_the_grid_of_their_input():
    assert {pattern.output for pattern in SHAPE} == {Output.PICKED}


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        (lambda x: x.flatten(1), "flatten"),
        (nn.Flatten(2), "flatten"),
        (lambda x: x.view(x.size(0), -1), "reshape"),
        (lambda x: torch.reshape(x, (-1,)), "reshape"),
        (nn.Dropout(0.5), "dropout"),
        (nn.Dropout2d(0.5, inplace=True), "dropout"),
        (lambda x: F.dropout(x, 0.5, False), "dropout"),
        (lambda x: F.dropout2d(x, 0.5, training=False), "dropout"),
        (nn.Identity(), "identity"),
    ],
)
def test_moves_behind_a_quantized_value(plan_behind_conv, body, pattern):
    plan = plan_behind_conv(body)
    assert [unit.pattern for unit in plan.units] == ["conv", pattern]
    assert plan.policies[plan.units[-1].roles["y"]] == SharedWith(TensorRef("conv"))


@pytest.mark.parametrize(
    "body",
    [
        lambda x: F.dropout(x, 0.5),
        lambda x: F.dropout(x, 0.5, True),
        lambda x: F.dropout2d(x, 0.5),
        lambda x: F.dropout2d(x, 0.5, True),
        lambda x: F.dropout2d(x, training=True),
    ],
)
def test_a_dropout_that_is_active_in_evaluation_mode_stays(plan_behind_conv, body):
    plan = plan_behind_conv(body)
    assert [unit.pattern for unit in plan.units] == ["conv"]
    assert [(r.pattern, r.reason) for r in plan.rejections] == [
        ("dropout", "it drops values even in evaluation mode (training=True)")
    ]


def test_an_active_dropout_drops_in_the_converted_model_too():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return F.dropout(self.conv(x), 0.5)

    x = torch.rand(2, 3, 8, 8)
    prepared = fxq.prepare(Net().eval(), x)
    prepared(x)
    assert (fxq.convert(prepared)(x) == 0).any()
