"""A fake-quantize that is too coarse, or that clips, is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from tests.fuzz.half_step import changed_by_more, step_of
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


def test_steps():
    weight = torch.tensor([[1.0, -2.0], [0.5, 0.1]])
    assert step_of(weight, fxq.QScheme(axis=0, symmetric=True)).flatten().tolist() == pytest.approx([4 / 255, 1 / 255])
    assert float(step_of(weight, fxq.QScheme(signed=False))) == pytest.approx(3 / 255)
    assert float(step_of(weight.abs() + 1, fxq.QScheme(signed=False))) == pytest.approx(3 / 255)
