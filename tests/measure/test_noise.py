"""The noise of units: alone, accumulated, and what makes it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.analysis.metrics import SignalToNoise
from fxquant.measure.noise import Deviation, DeviationSums, UnitNoise, decibels, sqnr
from fxquant.measure.parity import measure_parity
from fxquant.measure.parity_table import Parity
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


CLOSE = 1e-6
"""Relative: sums of float32 squares in float64, in another order."""


def measured(reference: torch.Tensor, other: torch.Tensor, axis: int = 1, parts: int = 1) -> Deviation:
    sums = DeviationSums()
    for a, b in zip(reference.chunk(parts), other.chunk(parts), strict=True):
        sums.add(a, b, axis)
    return sums.result()


def test_all_of_it_against_its_definition() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 5, 3)
    y = x + 0.1 * torch.randn(8, 5, 3)
    found = measured(x, y)
    assert found.sqnr == pytest.approx(sqnr(x, y), rel=CLOSE)
    cosine = torch.nn.functional.cosine_similarity(x.flatten().double(), y.flatten().double(), dim=0)
    assert found.cosine == pytest.approx(cosine.item(), rel=CLOSE)
    assert found.largest == pytest.approx((x - y).abs().max().item(), rel=CLOSE)
    shares = (x - y).square().sum((0, 2)) / x.square().sum((0, 2))
    whole = (x - y).square().sum() / x.square().sum()
    assert found.lost == pytest.approx(max(shares.mean().item(), whole.item()), rel=1e-5)
    assert found.channel == shares.argmax().item()


def test_batches_add_up() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.randn(12, 4)
    once, parts = measured(x, y), measured(x, y, parts=4)
    assert parts.sqnr == pytest.approx(once.sqnr, rel=CLOSE)
    assert (parts.largest, parts.channel) == (once.largest, once.channel)


def test_a_large_channel_does_not_hide_that_the_others_are_lost() -> None:
    x = torch.ones(4, 8)
    x[:, 3] = 1000.0
    y = torch.zeros(4, 8)
    y[:, 3] = 1000.0
    found = measured(x, y)
    assert found.sqnr > 50
    assert found.lost == pytest.approx(7 / 8)


def test_as_many_channels_as_a_batch_has() -> None:
    sums = DeviationSums()
    sums.add(torch.ones(2, 3), torch.ones(2, 3), 1)
    sums.add(torch.ones(2, 5), torch.zeros(2, 5), 1)
    assert sums.signal.tolist() == [4, 4, 4, 2, 2]
    assert sums.result().lost == pytest.approx((3 * 0.5 + 2) / 5)


def test_what_is_not_finite_in_the_float_model_is_left_out() -> None:
    x, y = torch.tensor([[1.0, math.inf], [math.nan, 2.0]]), torch.tensor([[1.0, 3.0], [5.0, 2.0]])
    assert measured(x, y).sqnr == math.inf
    assert (measured(y, x).sqnr, measured(y, x).lost, measured(y, x).largest) == (-math.inf, 1.0, math.inf)


@pytest.mark.parametrize(("signal", "noise", "expected"), [(1, 0, math.inf), (0, 1, -math.inf), (100, 1, 20.0)])
def test_decibels(signal: float, noise: float, expected: float) -> None:
    assert decibels(signal, noise) == expected


def test_of_nothing_nothing_is_known() -> None:
    assert math.isnan(decibels(0, 0))
    assert math.isnan(measured(torch.zeros(2, 3), torch.zeros(2, 3)).sqnr)
    found = DeviationSums().result()
    assert math.isnan(found.sqnr)
    assert (found.lost, found.channel) == (0.0, 0)
    sums = DeviationSums()
    sums.add(torch.zeros(0, 3), torch.zeros(0, 3), 1)
    assert math.isnan(sums.result().sqnr)


def test_scalars_and_half_precision() -> None:
    assert measured_scalar(torch.tensor(2.0), torch.tensor(1.0)).largest == 1.0
    x = torch.full((4, 2), 300.0, dtype=torch.float16)
    assert measured(x, x + 1).sqnr == pytest.approx(20 * math.log10(300), rel=1e-3)


def measured_scalar(reference: torch.Tensor, other: torch.Tensor) -> Deviation:
    sums = DeviationSums()
    sums.add(reference, other, -1)
    return sums.result()


def _by_sums(reference: torch.Tensor, other: torch.Tensor) -> float:
    return measured(reference, other, -1).sqnr


def _by_metric(reference: torch.Tensor, other: torch.Tensor) -> float:
    score = SignalToNoise()
    score.add(other, reference)
    return score.value


@pytest.mark.parametrize("measure", [sqnr, _by_sums, _by_metric])
@pytest.mark.parametrize(
    ("reference", "other", "expected"),
    [
        ([3.0, 4.0], [3.0, 4.5], 20.0),
        ([3.0, 4.0], [3.0, 4.0], math.inf),
        ([0.0, 0.0], [0.0, 1.0], -math.inf),
        ([0.0, 0.0], [0.0, 0.0], math.nan),
        ([], [], math.nan),
        ([3.0, 4.0], [math.inf, 4.0], -math.inf),
        ([3.0, 4.0], [math.nan, 4.0], -math.inf),
        ([math.inf, 3.0, 4.0], [math.inf, 3.0, 4.5], 20.0),
        ([-math.inf, 3.0, 4.0], [7.0, 3.0, 4.5], 20.0),
        ([math.nan, 3.0, 4.0], [math.nan, 3.0, 4.5], 20.0),
        ([math.inf, 3.0], [math.nan, 3.0], math.inf),
        ([math.nan, math.inf], [1.0, 2.0], math.nan),
    ],
)
def test_all_measures_of_noise_have_the_rules_of_sqnr(
    measure: Callable[[Tensor, Tensor], float], reference: list[float], other: list[float], expected: float
) -> None:
    found = measure(torch.tensor(reference), torch.tensor(other))
    assert found == pytest.approx(expected, nan_ok=True)
