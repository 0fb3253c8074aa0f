"""Networks without biases give the same whatever their values are multiplied with: int8, trained, learned."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.measure.noise import sqnr
from tests.outputs import rounding_outputs

FACTORS = (1e-8, 1e-30, 1e20)
AS_AT_1 = 2.0
"""dB. Bins of histograms are powers of two wide, so ranges are chosen among others for each factor."""


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8, bias=False)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2, bias=False)
        self.slopes = nn.PReLU(8)
        self.head = nn.Linear(8, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = x + self.second(x)
        x = torch.cat([self.depthwise(x), F.max_pool2d(x, 3)], -1) if x.shape[-1] == 3 else self.depthwise(x)
        x = F.interpolate(self.slopes(self.up(F.avg_pool2d(x, 2))), scale_factor=2.0, mode="bilinear")
        return self.head(F.adaptive_avg_pool2d(x, 2).mean((2, 3)))


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.gate = (nn.Linear(16, 16, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(x))
        x = x * torch.sigmoid(self.gate(x)) - 0.5 * x.mean(-1, keepdim=True)
        return self.second(torch.cat([x[:, 8:], x[:, :8]], 1))


def with_data(make: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return make().eval(), torch.randn(8, 3, 14, 14) if make is Convolutions else torch.randn(64, 16)


def quantized(model: nn.Module, x: Tensor, config: fxq.QConfigMapping | None = None) -> dict[str, Tensor]:
    prepared = fxq.calibrate(fxq.prepare(model, x[:2], config), [x], progress=False)
    int8 = fxq.convert(prepared, check=x)
    assert int8.parity.breaches == ()
    training = fxq.prepare_qat(model, x[:2]).train()
    training(x)
    results = {"simulation": fxq.convert(prepared, to="fake_quant")(x), "QAT": fxq.convert(training.eval())(x)}
    for call in range(3):
        results[f"int8, call {call}"] = int8(x)
    if x.dim() == 2:
        results["dynamic"] = fxq.convert(fxq.prepare(model, x[:2], fxq.default_dynamic_qconfig))(x)
    return results


@pytest.mark.parametrize("make", [Convolutions, Products])
def test_values_of_any_magnitude_are_quantized_alike(make: Callable[[], nn.Module]) -> None:
    model, x = with_data(make)
    plain = {name: sqnr(model(x), y.detach()) for name, y in quantized(model, x).items()}
    for factor in FACTORS:
        if make is Products and factor > 1:
            continue  # a sigmoid of 1e20 is another network
        expected = model(x * factor)
        for name, y in quantized(model, x * factor).items():
            assert sqnr(expected, y.detach()) > plain[name] - AS_AT_1, (factor, name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("factor", [1e-34, pytest.param(1e-36, marks=pytest.mark.slow), 1e-37])
@pytest.mark.parametrize("make", [Convolutions, Products])
@pytest.mark.filterwarnings("ignore:values are so small")
@pytest.mark.filterwarnings("ignore:calibration saw one and the same number")  # products that float makes zero
def test_where_products_of_scales_are_denormal_all_forms_agree(make: Callable[[], nn.Module], factor: float) -> None:
    model, x = with_data(make)
    for weight in model.parameters():
        weight.data *= 1e-3
    results = quantized(model, x * factor, rounding_outputs())  # real numbers are denormal themselves there
    assert all(bool(y.isfinite().all()) for y in results.values())


@pytest.mark.parametrize("factor", [1e-12, 1e10])
def test_weights_of_any_magnitude_are_quantized_alike(factor: float) -> None:
    model, x = with_data(Products)
    small = copy.deepcopy(model)
    for name in ("first", "second"):
        getattr(small, name).weight.data *= factor
    small.gate.weight.data /= factor  # of what the first layer gives
    plain = {name: sqnr(model(x), y.detach()) for name, y in quantized(model, x).items()}
    for name, y in quantized(small, x).items():
        assert sqnr(small(x), y.detach()) > plain[name] - AS_AT_1, name


@pytest.mark.parametrize("factor", [1.0, 1e-30, 1e20])
def test_rounding_is_learned_at_any_magnitude(factor: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8, bias=False)).eval()
    # Of inputs that are alike the sum of the weights counts, which rounding to nearest misses.
    x = (1 + torch.rand(256, 1) + 0.1 * torch.rand(256, 16)) * factor
    weight = fxq.PerChannelMinMaxObserver.with_args(bits=3, dtype=torch.int8, qscheme="per_channel_symmetric")
    config = fxq.QConfig(activation=fxq.HistogramObserver, weight=weight)
    prepared = fxq.calibrate(fxq.prepare(model, x[:2], config), [x], progress=False)
    learned = fxq.adaround(prepared, [x], iterations=200, progress=False)
    (row,) = learned.reconstruction
    assert row.learned < 0.6 * row.nearest
    nearest, best = (sqnr(model(x), fxq.convert(each)(x)) for each in (prepared, learned))
    assert best > nearest + 2


def test_learned_grids_start_alike_at_any_magnitude() -> None:
    def found(factor: float) -> list[float]:
        weight = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)) * factor
        options = {"dtype": torch.int8, "qscheme": "per_channel_symmetric", "ch_axis": 0, "channel_len": 4}
        module = fxq.LearnableFakeQuantize(fxq.PerChannelMinMaxObserver, -128, 127, **options)
        made = []
        for start in (lambda _: None, module.initialize_lsq, module.initialize_lsq_plus):
            module(weight)
            module.enable_param_learning()
            start(weight)
            made.append(sqnr(weight, module(weight).detach()))
        return made

    plain = found(1.0)
    assert min(plain) > 25
    for factor in (1e-8, 1e-30, 1e15):
        assert found(factor) == pytest.approx(plain, abs=0.1)


@pytest.mark.filterwarnings("ignore:values are so small")
def test_a_rescaled_grid_stays_within_float32() -> None:
    """A grid times a number keeps its integers, down to the smallest scale."""

    class Rescaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x) * 1e-5 / 1e6)

    torch.manual_seed(0)
    model, x = Rescaled().eval(), torch.randn(32, 16) * 1e-28
    int8 = fxq.quantize(model, [x], progress=False)
    assert bool(int8(x).isfinite().all())
