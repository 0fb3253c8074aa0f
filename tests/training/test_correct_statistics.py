"""``correct_statistics``: means and variances of each channel are those of the float model, in all forms and files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError, PlanError
from fxquant.measure.parity import plan_of
from fxquant.training.channel_statistics import ChannelStatistics
from fxquant.training.correctable_layers import correctable_layers

WEIGHT = fxq.PerChannelMinMaxObserver.with_args(ch_axis=0, dtype=torch.int8, qscheme="per_channel_symmetric", bits=2)
PER_TENSOR = fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric", bits=2)
ACTIVATION = fxq.MinMaxObserver.with_args(dtype=torch.uint8)


class Mixed(nn.Module):
    """Convolutions with a batch norm, depthwise and transposed, and linear layers with and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.head = nn.Linear(6, 8, bias=False)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(F.relu6(self.depthwise(self.first(x)) + 1))
        return self.last(torch.relu(self.head(torch.relu(x).mean((2, 3)))))


def data() -> list[Tensor]:
    return [torch.randn(6, 3, 6, 6, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]


def prepared(weight: Any = WEIGHT, correct_bias: bool = True) -> fxq.Quantizer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Mixed().eval()
    qconfig = fxq.QConfig(activation=ACTIVATION, weight=weight, correct_bias=correct_bias)
    return fxq.calibrate(fxq.prepare(model, data()[0], qconfig), data(), progress=False)


def corrected(weight: Any = WEIGHT, **options: Any) -> fxq.Quantizer:
    return fxq.correct_statistics(prepared(weight), data(), progress=False, **options)


@pytest.mark.parametrize("weight", [WEIGHT, PER_TENSOR])
def test_means_and_variances_are_those_of_the_float_model(weight: Any) -> None:
    result = corrected(weight)
    table = result.corrected_statistics
    assert [row.unit for row in table] == ["first_2", "depthwise", "relu", "relu_1", "last"]
    assert all(row.after <= row.before for row in table)
    per_tensor = weight is PER_TENSOR
    assert all((row.smallest, row.largest) == (1, 1) for row in table) == per_tensor

    simulated = fxq.convert(result, to="fake_quant")
    x = torch.cat(data())
    outputs: dict[str, Tensor] = {}
    for name, model in (("float", result.graph_module), ("quantized", simulated)):
        layer = model.get_submodule("last")
        handle = layer.register_forward_hook(lambda *args, name=name: outputs.update({name: args[2].detach()}))
        with torch.no_grad():
            model(x)
        handle.remove()
    assert torch.allclose(outputs["float"].mean(0), outputs["quantized"].mean(0), atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "groups", "scaled"),
    [(8, 1, True), (6, 1, True), (6, 6, True), (8, 2, False)],
)
def test_transposed_convolutions_are_scaled_where_each_output_has_its_scale(
    inputs: int, groups: int, scaled: bool
) -> None:
    """Their weight is [C_in, C_out / groups, ...]: a scale that several groups share is no output's."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.ConvTranspose2d(inputs, 6, 2, groups=groups)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
    qconfig = fxq.QConfig(activation=ACTIVATION, weight=WEIGHT)
    batch = torch.randn(4, inputs, 4, 4, generator=generator)
    calibrated = fxq.calibrate(fxq.prepare(nn.Sequential(layer).eval(), batch, qconfig), [batch], progress=False)
    result = fxq.correct_statistics(calibrated, [batch], progress=False)
    (row,) = result.corrected_statistics
    assert (row.smallest, row.largest) != (1, 1) if scaled else (row.smallest, row.largest) == (1, 1)
    with torch.no_grad():
        exact, rounded = layer(batch), fxq.convert(result, to="fake_quant")(batch)
        plain = fxq.convert(calibrated, to="fake_quant")(batch)
    deviation = [float((each.std((0, 2, 3)) / exact.std((0, 2, 3)) - 1).abs().mean()) for each in (rounded, plain)]
    assert deviation[0] < (0.8 * deviation[1] if scaled else 1)


def test_all_forms_and_files_hold_it(tmp_path: Path) -> None:
    result, x = corrected(), data()[0]
    int8 = fxq.convert(result, check=x)
    assert int8.parity.breaches == ()
    simulated, reference = fxq.convert(result, to="fake_quant"), fxq.convert(result, to="reference")
    assert torch.allclose(simulated(x), reference(x), atol=1e-6)
    assert not torch.equal(int8(x), fxq.convert(prepared())(x))
    assert torch.equal(fxq.convert(pickle.loads(pickle.dumps(result)))(x), int8(x))
    fxq.save(result, tmp_path / "model.fxq")
    assert torch.equal(fxq.convert(fxq.load(tmp_path / "model.fxq"))(x), int8(x))
    assert torch.equal(fxq.convert(corrected(memory=0))(x), int8(x))


def test_zeros_of_a_linear_layer_without_bias_stay() -> None:
    result = corrected()
    head = fxq.convert(result, to="fake_quant").get_submodule("head")
    assert not head(torch.zeros(2, 6)).any()
    names = {root for root, layer in result.weight_layers.items() if not hasattr(layer, "learned_bias")}
    assert names == {"relu_1"}


def test_integers_that_were_learned_stay_and_are_corrected_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fxquant.training.gptq_weight.MOST_INPUTS", 26)  # which two layers exceed
    rounded = fxq.gptq(prepared(), data(), progress=False)
    result = fxq.correct_statistics(rounded, data(), progress=False)
    assert [row.unit for row in result.corrected_statistics] == ["first_2", "relu"]
    text = str(result.corrected_statistics)
    assert "last is not corrected: KnownIntegers has integers of its own, which make up for their errors" in text
    before, after = (fxq.convert(each, to="fake_quant").get_submodule("last") for each in (rounded, result))
    assert torch.equal(before.bias, after.bias)
    assert not any("mean" in unit.roles for unit in plan_of(fxq.convert(result)).units)
    with pytest.raises(InputError, match="equalize takes what prepare gave"):
        fxq.equalize(result, data())
    with pytest.raises(PlanError, match="no layer can be corrected"):
        fxq.correct_statistics(result, data(), progress=False)


def test_statistics_of_parts_are_those_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator) + 100
    y = 0.5 * x + 0.1 * torch.randn(50, 3, generator=generator)
    whole, parts = ChannelStatistics(-1), ChannelStatistics(-1)
    whole.add(x, y)
    for one, other in zip(x.split(7), y.split(7), strict=True):
        parts.add(one, other)
    parts.add(x[:0], y[:0])
    for shifts in (True, False):
        first, second = (each.correction(scales=True, shifts=shifts) for each in (whole, parts))
        assert torch.allclose(first.factor, second.factor)
        assert torch.allclose(first.shift, second.shift)
    fitted = y.double() * first.factor
    assert torch.allclose(fitted.square().mean(0), x.double().square().mean(0))
    moved = whole.correction(scales=True, shifts=True)
    fitted = y.double() * moved.factor + moved.shift
    assert torch.allclose(fitted.mean(0), x.double().mean(0))
    assert torch.allclose(fitted.var(0), x.double().var(0))
    assert moved.after == pytest.approx(float((fitted - x).square().sum() / x.square().sum()), rel=1e-3)


def test_a_factor_that_makes_the_error_larger_is_left_out() -> None:
    statistics = ChannelStatistics(-1)
    x = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    statistics.add(x, torch.tensor([[0.1], [0.1], [-0.1], [-0.1]]))  # it knows nothing of x
    assert statistics.correction(scales=True, shifts=True).factor.tolist() == [1.0]


def test_one_sample_without_a_batch_dimension() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(4, generator=torch.Generator().manual_seed(0))
    qconfig = fxq.QConfig(activation=ACTIVATION, weight=WEIGHT)
    start = fxq.calibrate(fxq.prepare(model, x, qconfig), [x], progress=False)
    flat, row = (fxq.correct_statistics(start, [each], progress=False) for each in (x, x.unsqueeze(0)))
    assert flat.corrected_statistics.rows == row.corrected_statistics.rows
    assert [row.channels for row in flat.corrected_statistics] == [8, 2]
    alone, batch = ChannelStatistics(-1), ChannelStatistics(-1)
    alone.add(x, x / 2)
    batch.add(x.unsqueeze(0), x.unsqueeze(0) / 2)
    assert alone.count == 1
    one, other = (each.correction(scales=True, shifts=True) for each in (alone, batch))
    assert torch.equal(one.shift, other.shift)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_named(bad: float) -> None:
    start, batches = prepared(), data()
    batches[1][0, 0, 0, 0] = bad
    with pytest.raises(CalibrationError, match="gives values that are not finite") as caught:
        fxq.correct_statistics(start, batches, progress=False)
    assert "at:       first_2\n" in str(caught.value)
    assert "of the float model, calibration batch 1\n" in str(caught.value)


def test_bad_input() -> None:
    start = prepared()
    for wrong in (fxq.convert(start), fxq.prepare_qat(Mixed(), data()[0]), Mixed()):
        with pytest.raises(InputError, match="correct_statistics takes what prepare gave"):
            fxq.correct_statistics(wrong, data())  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match="no batch"):
        fxq.correct_statistics(start, [])
    with pytest.raises(CalibrationError, match="have no range"):
        fxq.correct_statistics(fxq.prepare(Mixed().eval(), data()[0]), data())
    with pytest.raises(InputError, match="memory is no number of bytes"):
        fxq.correct_statistics(start, data(), memory=-1)
    simulated = fxq.convert(start, to="fake_quant")
    assert len(correctable_layers(simulated, plan_of(simulated), {})[0]) == 5
