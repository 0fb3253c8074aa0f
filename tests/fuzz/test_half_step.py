"""A fake-quantize that is too coarse, or that clips, is named."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.fake_quantize.defaults import default_fused_act_fake_quant
from tests.fuzz.half_step import changed_by_more, ends_with_gradients, step_of
from tests.fuzz.source import draw, seeded

X = draw(1, 4, 3, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = seeded(2, nn.Conv1d(3, 4, 3)), seeded(3, nn.Linear(6, 5))

    def forward(self, x):
        return self.fc(torch.sigmoid(self.conv(x)))


@pytest.fixture
def trained():
    return fxq.prepare_qat(Net().train(), X)


def test_a_first_step_changes_nothing_by_more(trained):
    with changed_by_more(trained) as found:
        trained(X)
    assert found == set()
    assert not any(module._forward_hooks for module in trained.modules())


@pytest.mark.parametrize("larger", [0.5, 1.5])
def test_inputs_beyond_the_range_and_coarse_grids_are_found(trained, larger):
    """A moving average stays near the first batch."""
    trained(X * 1.0)
    with changed_by_more(trained) as found:
        trained(X * larger)
    assert "x_fake_quant" in found
    assert not any("weight" in name for name in found)


def test_a_weight_that_is_rounded_to_another_grid_is_found(trained):
    trained(X)
    trained.apply(fxq.disable_observer)
    with torch.no_grad():
        trained.conv.weight.mul_(3)
    with changed_by_more(trained) as found:
        trained(X)
    assert "conv.weight_fake_quant" in found
    assert "fc.weight_fake_quant" not in found


def test_the_largest_value_has_a_gradient_where_it_is_half_a_step_out():
    """Zero lies between two integers; the one that it goes to puts an end half a step out."""
    x = torch.tensor([-1.0, -0.5, 0.0, 0.7, 1.0]) * 0.0073
    found = {}
    for ends in (nullcontext, ends_with_gradients):
        module = default_fused_act_fake_quant()
        leaf = x.clone().requires_grad_()
        with ends(module):
            y = module(leaf)
        y.sum().backward()
        found[ends] = leaf.grad.tolist(), y.tolist()
    assert sorted(found[nullcontext][0]) == [0, 1, 1, 1, 1]
    assert found[ends_with_gradients][0] == [1, 1, 1, 1, 1]
    assert found[nullcontext][1] == found[ends_with_gradients][1]


def test_values_that_are_clipped_by_more_keep_their_gradient():
    module = default_fused_act_fake_quant()
    module(torch.tensor([-1.0, 1.0]))
    module.disable_observer()
    leaf = torch.tensor([0.5, 3.0]).requires_grad_()
    with ends_with_gradients(module):
        module(leaf).sum().backward()
    assert leaf.grad.tolist() == [1, 0]


def test_steps():
    weight = torch.tensor([[1.0, -2.0], [0.5, 0.1]])
    assert step_of(weight, fxq.QScheme(axis=0, symmetric=True)).flatten().tolist() == pytest.approx([4 / 255, 1 / 255])
    assert float(step_of(weight, fxq.QScheme(signed=False))) == pytest.approx(3 / 255)
    assert float(step_of(weight.abs() + 1, fxq.QScheme(signed=False))) == pytest.approx(3 / 255)
