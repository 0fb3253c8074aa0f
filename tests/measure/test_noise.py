"""The noise of units: alone, accumulated, and what makes it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.measure.noise import UnitNoise, sqnr
from fxquant.measure.parity import Parity, measure_parity
from fxquant.measure.runner import float_values

PER_TENSOR = fxq.QConfig(
    activation=fxq.MinMaxObserver.with_args(dtype=torch.quint8),
    weight=fxq.MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric),
)
FOLDED = 1e-5
"""Relative: batch norm folded into a convolution rounds elsewhere in float32."""
LOST, FINE = 5, 30
"""dB: of a layer whose weights nearly all round to 0, and of layers on 8 bits without outliers."""


class Net(nn.Module):
    """Convolution with batch norm, residual and ReLU; an add; a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn(self.conv(x)) + x)
        return self.fc((y + torch.sigmoid(y)).mean((2, 3)))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def forms(model: nn.Module, x: Tensor, qconfig: fxq.QConfig | None = None) -> tuple[fxq.Quantizer, Parity]:
    prepared = fxq.calibrate(fxq.prepare(model, x, qconfig), [x], progress=False)
    return prepared, measure_parity(fxq.convert(prepared), fxq.convert(prepared, to="fake_quant"), (x,))


def test_a_simulation_without_its_roundings_is_the_float_model() -> None:
    x, model = torch.randn(2, 3, 8, 8), Net().eval()
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    values = float_values(fxq.convert(prepared, to="fake_quant"), {"x": x})
    expected = model(x)
    torch.testing.assert_close(values["fc"], expected, rtol=FOLDED, atol=FOLDED)
    assert sqnr(expected, fxq.convert(prepared, to="fake_quant")(x)) < 60  # so that it shows where roundings are left


def test_noise_alone_is_that_of_the_int8_unit_on_the_values_of_the_float_model() -> None:
    x, model = torch.randn(2, 3, 8, 8), Net().eval()
    prepared, parity = forms(model, x)
    int8, row = fxq.convert(prepared), list(parity)[-1]
    y = torch.relu(model.bn(model.conv(x)) + x)
    pooled = (y + torch.sigmoid(y)).mean((2, 3))
    qparams = int8.fc.qparams("x")
    q = fxq.kernels.quantize(pooled, qparams.scale, qparams.zero_point, 0, 255, torch.uint8)
    alone = int8.fc(q)  # real numbers
    assert row.unit == "fc"
    assert row.noise.isolated == pytest.approx(sqnr(model.fc(pooled), alone), abs=0.01)
    assert row.noise.accumulated == pytest.approx(sqnr(model(x), int8(x)), abs=0.01)
    assert row.noise.isolated > row.noise.accumulated + 1


def test_of_two_results_without_signal_nothing_is_known() -> None:
    zeros, ones = torch.zeros(3), torch.ones(3)
    assert math.isnan(sqnr(zeros, zeros))
    assert (sqnr(ones, ones), sqnr(zeros, ones), sqnr(ones, ones * math.nan)) == (math.inf, -math.inf, -math.inf)
    assert UnitNoise(math.nan, math.nan, math.nan).part == ""


def test_a_unit_without_a_weight_blames_the_activations() -> None:
    _, parity = forms(Net().eval(), torch.randn(2, 3, 8, 8))
    weights = {row.pattern: row.noise.weight for row in parity}
    assert {pattern for pattern, weight in weights.items() if weight < math.inf} == {"conv_bn_add_act", "linear"}
    assert {row.noise.part for row in parity if row.noise.weight == math.inf} == {"activation"}


def test_the_guilty_layer_comes_first_and_its_weight_is_named() -> None:
    # On one scale for all, one outlier that meets only zeros makes the other weights of its layer round to zero.
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    with torch.no_grad():
        model[0].weight[0].zero_()
        model[0].bias[0] = 0.0
        model[1].weight[3, 0] = 1000.0
    _, parity = forms(model, torch.randn(64, 8), PER_TENSOR)
    worst, *others = parity.worst()
    assert (worst.unit, worst.noise.part) == ("_1", "weight")
    assert worst.noise.isolated <= LOST
    assert all(row.noise.isolated >= FINE for row in others)
    (line,) = [line for line in str(parity).splitlines() if line.startswith("_1 ")]
    assert f"{worst.noise.isolated:.1f}*" in line
    assert " weight " in line


@pytest.mark.filterwarnings("ignore:one channel reaches so far")
def test_an_outlier_among_the_inputs_is_no_fault_of_the_weight() -> None:
    x = torch.randn(64, 8)
    x[0, 0] = 1000.0
    _, parity = forms(nn.Sequential(nn.Linear(8, 8)).eval(), x, PER_TENSOR)
    assert [row.noise.part for row in parity] == ["activation"]


def test_a_unit_that_makes_no_noise_has_no_guilty_part() -> None:
    assert UnitNoise(math.inf, 20.0, math.inf).part == ""


def test_sqnr_is_ten_times_the_logarithm_of_the_ratio_of_powers() -> None:
    signal = torch.full((100,), 2.0)
    assert math.isclose(sqnr(signal, signal + 0.2), 20.0, abs_tol=1e-4)  # power 4 over 0.04; 0.2 is no float32
    assert sqnr(signal, signal) == math.inf
    assert sqnr(torch.zeros(3), torch.ones(3)) == -math.inf
