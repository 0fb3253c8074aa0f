"""Positive factors cost nothing: the integers are the same, their scale is a multiple."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.patterns.rescale import LARGEST
from fxquant.plan.spec import TensorRef
from tests.outputs import rounding_outputs

CLOSE = 30.0
"""dB that 8 bits reach behind one layer."""


def test_the_integers_are_those_of_the_input(forms_behind_conv):
    forms = forms_behind_conv(lambda x: (x * 3).flip(1))
    assert forms.units == ["conv", "rescale", "flip"]
    assert not [module for name, module in forms.int8.named_modules() if "mul" in name]
    qparams = forms.int8.quant_plan.qparams
    by_pattern = {unit.pattern: qparams[unit.roles["y"]] for unit in forms.int8.quant_plan.units}
    assert torch.equal(by_pattern["rescale"].scale, by_pattern["conv"].scale * 3)
    assert torch.equal(by_pattern["flip"].scale, by_pattern["rescale"].scale)
    assert torch.equal(by_pattern["rescale"].zero_point, by_pattern["conv"].zero_point)
    torch.testing.assert_close(forms.got, forms.simulated)
    assert forms.sqnr > CLOSE


@pytest.mark.parametrize("factor", [0.0, -2.0, 2 * LARGEST, 0.5 / LARGEST, float("inf")])
def test_other_factors_make_other_integers(plan_behind_conv, factor):
    assert "rescale" not in [unit.pattern for unit in plan_behind_conv(lambda x: x * factor).units]


class Net(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, self.first(x))


BODIES = {
    "a value and its multiple": lambda m, y: (y, y * 2, y / 4),
    "read in float": lambda m, y: m.last(y * 2) + F.softmax(y * 2, -1) + F.softmax(y, -1),
    "concatenated": lambda m, y: m.last(torch.cat([y, y * 3])),
    "clamped": lambda m, y: m.last(F.relu6(y * 3)),
    "twice": lambda m, y: m.last(y * 3 / 2 * 0.1),
    "added": lambda m, y: m.last(y * 3 + y),
}


def decibels(expected: Tensor, got: Tensor) -> float:
    return float(10 * torch.log10(expected.square().mean() / (expected - got).square().mean()))


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_whatever_reads_it(body):
    torch.manual_seed(0)
    x, model = torch.randn(64, 6), Net(body).eval()
    prepared = fxq.prepare(model, x, rounding_outputs()).calibrate([x], progress=False)
    assert "rescale" in [unit.pattern for unit in prepared.plan.units]
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    with torch.no_grad():
        outputs = [y if isinstance(y, tuple) else (y,) for y in (model(x), int8(x), simulated(x))]
    for expected, got, simulation in zip(*outputs, strict=True):
        assert decibels(expected, got) > CLOSE
        assert decibels(simulation, got) > CLOSE + 20
    fxq.convert(prepared, check=x)


def test_a_value_and_its_multiple_in_one_concatenation_keep_the_values_grid():
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    prepared = fxq.prepare(Net(BODIES["concatenated"]).eval(), x, rounding_outputs()).calibrate([x], progress=False)
    qparams = fxq.convert(prepared).quant_plan.qparams
    cat, first, times = (qparams[TensorRef(name)] for name in ("cat", "first", "mul"))
    assert torch.equal(times.scale, first.scale * 3)
    torch.testing.assert_close(first.scale * 3, cat.scale)  # so first itself loses nothing


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_training_rounds_where_conversion_does(body):
    torch.manual_seed(0)
    x, model = torch.randn(64, 6), Net(body)
    model.last.requires_grad_(False)  # one of them has no use for it
    trained = fxq.prepare_qat(model.train(), x)
    trained(x)
    int8 = fxq.convert(trained.eval())
    with torch.no_grad():
        expected, got = (y if isinstance(y, tuple) else (y,) for y in (trained(x), int8(x)))
    for one, other in zip(expected, got, strict=True):
        assert decibels(one, other) > CLOSE
