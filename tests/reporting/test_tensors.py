from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.observers.bins import Bins
from fxquant.reporting.subject import subject_of
from fxquant.reporting.tensors import MOST_BINS, MOST_SCALES, Histogram, tensor_facts


def test_a_histogram_keeps_every_value() -> None:
    observer = fxq.HistogramObserver()
    values = torch.randn(5000)
    observer(values)
    found = Histogram.of_bins(Bins.of(observer.counts, observer.min_val, observer.max_val))
    assert sum(found.counts) == 5000
    assert len(found.counts) <= MOST_BINS
    for place in (10, 40):
        end = found.low + place * found.width
        assert sum(found.counts[:place]) == int((values < end).sum())


@pytest.mark.parametrize(
    "values", [torch.tensor([3.0, 3.0]), torch.zeros(4), torch.tensor([1.0, torch.inf, torch.nan])]
)
def test_a_histogram_of_what_is_all_the_same(values: torch.Tensor) -> None:
    found = Histogram.of_values(values)
    assert found is not None
    assert sum(found.counts) == int(values.isfinite().sum())
    assert Histogram.of_values(torch.tensor([torch.nan])) is None


def test_values_and_weights(calibrated: fxq.Quantizer) -> None:
    subject = subject_of(calibrated)
    facts = tensor_facts(subject, {})
    x = facts["x"]
    assert (x["kind"], x["policy"], x["scheme"]) == (
        "value",
        "measured by HistogramObserver",
        "uint8 affine per tensor",
    )
    assert (x["min"], x["max"]) == (-4.0, 4.0)
    assert sum(x["counts"]) == 2 * 2 * 3 * 8 * 8
    assert x["clip"][0] <= -4 + x["scale"]
    assert x["clipped"] < 0.01
    weight = facts["conv.weight@relu"]
    folded = subject.simulated.get_submodule("conv").weight
    assert (weight["kind"], weight["shape"], weight["channels"]) == ("weight", "8x3x3x3", 8)
    assert weight["min"] == pytest.approx(float(folded.detach().min()), rel=1e-4)
    assert len(weight["scales"]) == 8
    assert not any(name.endswith("@-3") for name in facts)  # means are no tensors on a grid


def test_what_is_clipped_is_counted() -> None:
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    x = torch.rand(256, 4)
    x[0, 0] = 1000.0
    config = fxq.QConfig(
        fxq.PercentileObserver.with_args(percentile=99.0),
        fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme=torch.per_tensor_symmetric),
    )
    prepared = fxq.calibrate(fxq.prepare(model, x, config), [x], progress=False)
    facts = tensor_facts(subject_of(prepared), {})["input_1"]
    assert facts["clip"][1] < 100
    assert 0 < facts["clipped"] < 0.02


def test_a_converted_model_shows_weights_and_grids(calibrated: fxq.Quantizer) -> None:
    facts = tensor_facts(subject_of(fxq.convert(calibrated)), {})
    assert "counts" in facts["conv.weight@relu"]
    assert "counts" not in facts["x"]
    assert facts["x"]["scale"] > 0


def test_an_uncalibrated_model_has_policies() -> None:
    prepared = fxq.prepare(nn.Sequential(nn.Linear(4, 4), nn.Flatten()).eval(), torch.rand(2, 4))
    facts = tensor_facts(subject_of(prepared), {})
    assert all(facts["input_1"].get(name) is None for name in ("min", "scale", "counts"))


@pytest.mark.filterwarnings("ignore:one channel reaches so far")
def test_many_channels_are_drawn_by_their_largest() -> None:
    layer = nn.Linear(2, 1000, bias=False)
    nn.init.ones_(layer.weight)
    with torch.no_grad():
        layer.weight[777] = 100
    prepared = fxq.calibrate(
        fxq.prepare(nn.Sequential(layer).eval(), torch.rand(2, 2)), [torch.rand(2, 2)], progress=False
    )
    facts = next(row for row in tensor_facts(subject_of(prepared), {}).values() if row["kind"] == "weight")
    assert len(facts["scales"]) <= MOST_SCALES
    assert max(facts["scales"]) == pytest.approx(facts["spread"][2])


@pytest.mark.parametrize("channels", [6, 4])
def test_the_weight_of_a_converted_transposed_convolution(channels: int) -> None:
    """It is stored by output channels, which the float layer has along another axis."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(channels, 4, 3)).eval()
    with torch.no_grad():
        model[0].weight.mul_(torch.tensor([50.0, 100.0, 200.0, 400.0]).view(1, 4, 1, 1) / 50)
    x = torch.randn(2, channels, 5, 5)
    int8 = fxq.quantize(model, [x], progress=False)
    (weight,) = [row for row in tensor_facts(subject_of(int8), {}).values() if row["kind"] == "weight"]
    assert weight["shape"] == f"4x{channels}x3x3"
    assert weight["max"] == pytest.approx(float(model[0].weight.detach().max()), rel=0.01)
    assert weight["min"] == pytest.approx(float(model[0].weight.detach().min()), rel=0.01)


def test_looking_at_a_weight_does_not_keep_it_twice() -> None:
    model = nn.Sequential(nn.Linear(64, 64)).eval()
    x = torch.randn(4, 64)
    int8 = fxq.quantize(model, [x], progress=False)
    int8(x)
    before = [name for name, _ in int8.named_buffers()]
    tensor_facts(subject_of(int8), {})
    assert [name for name, _ in int8.named_buffers()] == before
