"""Ranges from data that is empty, constant, not finite, or never there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError
from fxquant.plan.spec import TensorRef
from tests.outputs import rounding_outputs

HALF_A_STEP = 0.5 + 1e-4
EIGHT_BITS = fxq.QScheme(signed=False)
SYMMETRIC = fxq.QScheme(signed=False, symmetric=True)
OBSERVERS = (
    fxq.MinMaxObserver,
    fxq.MovingAverageMinMaxObserver,
    fxq.HistogramObserver,
    fxq.PercentileObserver,
    fxq.MSEObserver,
    fxq.EntropyObserver,
)
EXACT = (fxq.MinMaxObserver, fxq.MovingAverageMinMaxObserver, fxq.PercentileObserver)


def qparams(observer, *batches: Tensor, scheme: fxq.QScheme = EIGHT_BITS, **arguments) -> tuple[float, int]:
    made = observer(scheme=scheme, **arguments)
    for batch in batches:
        assert made(batch) is batch
    qparams = made.qparams()
    assert all(torch.isfinite(value).all() for value in made.state_dict().values() if value.is_floating_point())
    return float(qparams.scale), int(qparams.zero_point)


@pytest.mark.parametrize("observer", OBSERVERS)
def test_nothing_but_zeros(observer):
    scale, zero_point = qparams(observer, torch.zeros(8))
    assert scale > 0
    assert zero_point == 0


def test_a_channel_of_zeros_leaves_the_others_alone():
    made = fxq.PerChannelMinMaxObserver(scheme=fxq.QScheme(symmetric=True, axis=0))
    made(torch.tensor([[0.0, 0.0], [1.0, -2.0]]))
    qparams = made.qparams()
    assert float(qparams.scale[0]) > 0
    assert float(qparams.scale[1]) == pytest.approx(2 / 127.5)
    assert qparams.zero_point.tolist() == [0, 0]


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize(
    ("values", "zero_point"), [([3.0] * 8, 0), ([-3.0] * 8, 255), ([1.0, 2.0, 3.0] * 4, 0)], ids=["3", "-3", "1 to 3"]
)
def test_ranges_hold_zero(observer, values, zero_point):
    scale, found = qparams(observer, torch.tensor(values))
    assert found == zero_point
    assert scale == pytest.approx(3 / 255, rel=0.02)


@pytest.mark.parametrize("observer", OBSERVERS)
def test_a_batch_with_nan(observer):
    scale, zero_point = qparams(observer, torch.tensor([1.0, float("nan"), 2.0]), torch.tensor([-1.0, 3.0]))
    assert 0 < scale <= 4 / 255 + 1e-6
    assert 0 <= zero_point <= 255
    if observer in (fxq.MinMaxObserver, fxq.HistogramObserver):
        assert (scale, zero_point) == (pytest.approx(4 / 255, rel=0.01), 64)


@pytest.mark.parametrize(
    "first", [torch.zeros(8), torch.tensor([0.0, 1e-30]), torch.full((8,), 3.0)], ids=["zeros", "tiny", "constant"]
)
def test_a_first_batch_without_width(first):
    values = torch.randn(1000)
    made = fxq.HistogramObserver(scheme=EIGHT_BITS)
    made(first), made(values)
    alone = fxq.HistogramObserver(scheme=EIGHT_BITS)
    alone(values)
    assert float(made.qparams().scale) == pytest.approx(float(alone.qparams().scale), rel=0.1)
    assert float(made.counts.sum()) == len(first) + len(values)


def squared_error(x: Tensor, low: float, high: float, steps: int) -> float:
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / steps
    zero_point = round(-low / scale)
    return float((torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, steps) - x).square().sum())


@pytest.mark.parametrize("bits", [4, 8])
def test_one_outlier(bits):
    x = torch.cat([torch.randn(9999), torch.tensor([1000.0])])
    scheme = fxq.QScheme(bits=bits, signed=False)
    steps = 2**bits - 1
    best = min(squared_error(x, float(x.min()), 1000.0 * share / 200, steps) for share in range(1, 201))
    scale, zero_point = qparams(fxq.HistogramObserver, x, scheme=scheme)
    assert squared_error(x, -zero_point * scale, (steps - zero_point) * scale, steps) <= 1.05 * best
    scale, zero_point = qparams(fxq.PercentileObserver, x, scheme=scheme, percentile=99.9)
    assert 3 <= (steps - zero_point) * scale <= 5


def test_values_that_were_never_seen_are_named():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    with pytest.raises(CalibrationError) as caught:
        fxq.convert(fxq.prepare(model, torch.randn(4, 8)))
    text = str(caught.value)
    for name in ("0 input", "0 output", "2 input"):
        assert name in text
    assert "2 output" not in text  # it is returned as float


@pytest.mark.parametrize("observer", OBSERVERS)
def test_an_empty_batch_changes_nothing(observer):
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval()
    qconfig = fxq.QConfig(observer.with_args(scheme=EIGHT_BITS), fxq.get_default_qconfig().weight)
    batches, empty = [torch.randn(3, 8), torch.randn(2, 8)], torch.empty(0, 8)
    expected = fxq.convert(fxq.prepare(model, batches[0], qconfig).calibrate(batches, progress=False))
    prepared = fxq.prepare(model, batches[0], qconfig)
    prepared.calibrate([batches[0], empty, batches[1]], progress=False)
    assert prepared(empty).shape == (0, 4)
    for to in ("int8", "fake_quant", "reference"):
        converted = fxq.convert(prepared, to=to)
        assert converted(empty).shape == (0, 4)
        for ref, qparams in expected.quant_plan.qparams.items():
            assert torch.equal(converted.quant_plan.qparams[ref].scale, qparams.scale)


@pytest.mark.parametrize("observer", EXACT)
def test_the_middle_of_an_unsigned_grid_is_128(observer):
    arguments = {"percentile": 100.0} if observer is fxq.PercentileObserver else {}
    scale, zero_point = qparams(observer, torch.tensor([-1.0, 2.0]), scheme=SYMMETRIC, **arguments)
    assert zero_point == 128
    assert scale == pytest.approx(2 / 127.5, rel=0.01)
    signed = qparams(observer, torch.tensor([-1.0, 2.0]), scheme=fxq.QScheme(symmetric=True), **arguments)
    assert signed == (scale, 0)


def test_the_first_batch_sets_a_moving_average():
    batches = torch.tensor([0.0, 10.0]), torch.tensor([0.0, 20.0])
    assert qparams(fxq.MovingAverageMinMaxObserver, *batches, averaging_constant=0.1) == (pytest.approx(11 / 255), 0)
    assert qparams(fxq.MovingAverageMinMaxObserver, *batches, averaging_constant=1.0) == (pytest.approx(20 / 255), 0)


class Bounded(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.sigmoid(x), torch.tanh(x), nn.functional.hardsigmoid(x)


def test_bounded_functions_keep_their_ends_beyond_what_was_seen():
    wide = fxq.QConfig(fxq.MinMaxObserver.with_args(scheme=EIGHT_BITS), fxq.get_default_qconfig().weight)
    narrow, x = torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 65)
    int8 = fxq.convert(
        fxq.prepare(Bounded().eval(), narrow, rounding_outputs(wide)).calibrate([narrow], progress=False)
    )
    for got, expected, step in zip(int8(x), Bounded()(x), (1 / 256, 2 / 256, 1 / 256), strict=True):
        # beside the output's own step there is that of the input, 2/255 wide, on a slope of at most 1
        assert float((got - expected).abs().max()) <= HALF_A_STEP * (step + 2 / 255)
    steps = [float(int8.quant_plan.qparams[TensorRef(name)].scale) for name in ("sigmoid", "tanh", "hardsigmoid")]
    assert steps == [1 / 256, 2 / 256, 1 / 256]
