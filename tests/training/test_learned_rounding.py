"""``adaround``: errors fall, integers are those that V says, and nothing else is touched."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError, PlanError, UnknownNameError
from fxquant.training.checkpoint import Checkpoint, Learned
from tests.sampling import one_of

FEW = 60
"""Steps: enough for tiny layers to find a better rounding than the nearest."""
WEIGHT = fxq.PerChannelMinMaxObserver.with_args(ch_axis=0, dtype=torch.int8, qscheme="per_channel_symmetric", bits=3)
QCONFIG = fxq.QConfig(activation=fxq.MinMaxObserver.with_args(dtype=torch.uint8), weight=WEIGHT)


class Residual(nn.Module):
    """A residual unit whose two branches read one value, and operators that stay float between units."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.shortcut = nn.Conv2d(8, 8, 1, stride=2)
        self.grouped = nn.Conv2d(8, 12, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(12, 6, 2, stride=2)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = F.relu6(self.depthwise(x) + self.shortcut(x))
        x = self.up(F.softmax(self.grouped(x), 1))
        return self.head(x.mean((2, 3)))


class Shared(nn.Module):
    """One layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))


class Odd(nn.Module):
    """Convolutions of other dimensions, paddings and dilations, some without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv1d(3, 6, 4, padding="same", padding_mode="reflect")
        self.three = nn.Conv3d(1, 4, (1, 2, 3), padding=(0, 1, 1), dilation=(1, 1, 2))
        self.two = nn.Conv2d(4, 4, (3, 1), groups=2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.one(x))
        x = self.three(x.reshape(-1, 1, 1, 6, 12))[:, :, 0]
        return self.two(x[0])


def images(seed: int = 1, size: int = 8) -> Tensor:
    return torch.randn(6, 3, size, size, generator=torch.Generator().manual_seed(seed))


def signals(seed: int = 1) -> Tensor:
    return torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(seed))


def rows(seed: int = 1) -> Tensor:
    return torch.randn(64, 6, generator=torch.Generator().manual_seed(seed))


def made(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_var.uniform_(0.5, 2.0)
        return model.eval()


DATA: dict[type[nn.Module], Callable[[int], Tensor]] = {Residual: images, Shared: rows, Odd: signals}


def prepared(kind: type[nn.Module] = Residual, qconfig: Any = QCONFIG) -> fxq.Quantizer:
    batches = data(kind)
    return fxq.calibrate(fxq.prepare(made(kind), batches[0], qconfig), batches, progress=False)


def data(kind: type[nn.Module] = Residual) -> list[Tensor]:
    return [DATA[kind](seed) for seed in (1, 2, 3)]


def learned(kind: type[nn.Module] = Residual, **options: Any) -> Any:
    options = {"iterations": FEW, "rows": 64, "learning_rate": 0.05, "progress": False} | options
    return fxq.adaround(prepared(kind), data(kind), **options)


def states_equal(one: Any, other: Any) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", DATA)
def test_errors_fall_and_integers_are_what_v_says(kind: type[nn.Module]) -> None:
    result = learned(kind)
    rows = result.reconstruction.rows
    assert len(rows) == len(result.weight_layers) == (2 if kind is Shared else len(list(_layers(result))))
    assert all(row.learned <= row.nearest for row in rows)
    assert sum(row.learned < 0.95 * row.nearest for row in rows) >= len(rows) / 2
    differ = 0
    for layer in result.weight_layers.values():
        rounding, weight = layer.weight_fake_quant, layer.weight.detach()
        scale = rounding.scale.reshape(
            [-1 if d == rounding.scheme.axis % weight.dim() else 1 for d in range(weight.dim())]
        )
        steps = weight * (1 / scale)
        low, high = rounding.quant_min, rounding.quant_max
        expected = (torch.floor(steps) + (rounding.V >= 0)).clamp(low, high)
        assert torch.equal(rounding.integers(weight).float(), expected)
        differ += int((expected != torch.round(steps).clamp(low, high)).sum())
    assert differ > 0


def _layers(result: Any) -> list[nn.Module]:
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
    return [module for module in result.graph_module.modules() if isinstance(module, kinds)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", DATA)
def test_all_forms_take_these_integers(kind: type[nn.Module]) -> None:
    result = learned(kind, iterations=20)
    x = DATA[kind](7)
    simulated, reference = fxq.convert(result, to="fake_quant"), fxq.convert(result, to="reference")
    assert torch.equal(simulated(x), reference(x))
    int8 = fxq.convert(result, check=x)
    assert int8.parity.breaches == ()


@pytest.mark.slow
def test_it_gives_better_outputs_than_rounding_to_nearest() -> None:
    model, start = made(Residual), prepared()
    x = images(9)
    with torch.no_grad():
        errors = [(fxq.convert(each)(x) - model(x)).square().mean() for each in (start, learned(iterations=200))]
    assert errors[1] < 0.7 * errors[0]


def test_nothing_else_is_touched() -> None:
    start, batches = prepared(), data()
    before, copies = copy.deepcopy(start), [batch.clone() for batch in batches]
    random, plan = torch.get_rng_state(), start.plan
    result = fxq.adaround(start, batches, iterations=5, progress=False)
    assert torch.equal(torch.get_rng_state(), random)
    assert states_equal(start, before)
    assert start.plan is plan
    assert len(start.weight_layers) == 0
    assert all(map(torch.equal, batches, copies))
    assert torch.equal(fxq.convert(start)(images()), fxq.convert(before)(images()))
    assert result.graph_module is not start.graph_module
    assert start.reconstruction is None
    assert all(layer.weight_fake_quant.V.grad is None for layer in result.weight_layers.values())


@pytest.mark.parametrize("seed", [-1, 2**64 - 1])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert states_equal(learned(Shared, seed=seed, iterations=5), learned(Shared, seed=seed, iterations=5))


def test_the_seed_decides() -> None:
    first, again, other = (learned(seed=seed, iterations=10) for seed in (3, 3, 4))
    assert states_equal(first, again)
    assert not states_equal(first, other)


@pytest.mark.slow
def test_without_gradients_around_it_learns_the_same() -> None:
    with torch.no_grad():
        result = learned(iterations=5)
    assert states_equal(result, learned(iterations=5))


@pytest.mark.slow
@pytest.mark.parametrize("kind", one_of(2, [Residual, Odd]))
def test_values_in_files_give_the_same_bits(kind: type[nn.Module]) -> None:
    assert states_equal(learned(kind, memory=0, iterations=10), learned(kind, iterations=10))


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learned(iterations=10)
    save = Checkpoint.save

    def stopped(self: Checkpoint, index: int, found: Learned) -> None:
        if index == 3:
            raise KeyboardInterrupt
        save(self, index, found)

    monkeypatch.setattr(Checkpoint, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        learned(iterations=10, checkpoint=tmp_path / "run")
    monkeypatch.undo()
    resumed = learned(iterations=10, checkpoint=tmp_path / "run")
    assert states_equal(resumed, whole)
    assert resumed.reconstruction == whole.reconstruction
    assert states_equal(learned(iterations=10, checkpoint=tmp_path / "run"), whole)
    with pytest.raises(InputError, match="the checkpoint is of another run: choices differ"):
        learned(iterations=11, checkpoint=tmp_path / "run")


@pytest.mark.slow
def test_activations_in_float_are_another_thing_to_learn_from() -> None:
    without, quantized = (learned(activations=flag, iterations=5).reconstruction.rows for flag in (False, True))
    assert without[0].nearest != quantized[0].nearest


@pytest.mark.parametrize("grids", ["mse", "observed"])
def test_grids_are_those_asked_for(grids: Any) -> None:
    start = prepared()
    observed = fxq.convert(start, to="fake_quant").quant_plan.qparams
    result = learned(grids=grids, iterations=1)
    qparams = fxq.convert(result).quant_plan.qparams
    same = [torch.equal(qparams[ref].scale, observed[ref].scale) for ref in qparams if ref.kind == "parameter"]
    assert all(same) if grids == "observed" else not any(same)
    assert all(torch.equal(qparams[ref].scale, observed[ref].scale) for ref in qparams if ref.kind == "activation")


@pytest.mark.slow
def test_v_that_gets_no_gradient_stays() -> None:
    qconfig = fxq.QConfig(
        activation=fxq.MinMaxObserver.with_args(dtype=torch.uint8),
        weight=fxq.AdaRoundFakeQuantize.with_args(observer=WEIGHT),
    )
    start = prepared(qconfig=qconfig)
    kept = start.weight_layers["head"].weight_fake_quant
    with torch.no_grad():
        kept.V.neg_()
    kept.V.requires_grad_(False)
    result: Any = fxq.adaround(start, data(), iterations=FEW, rows=64, learning_rate=0.05, progress=False)
    assert "head" not in {row.unit for row in result.reconstruction}
    assert len(result.reconstruction.rows) == 5
    for name, layer in result.weight_layers.items():
        assert torch.equal(layer.weight_fake_quant.V, start.weight_layers[name].weight_fake_quant.V) == (name == "head")
    head = fxq.convert(result).get_submodule("head").weight
    assert torch.equal(head.flatten(), kept.integers(start.weight_layers["head"].weight).flatten())


@pytest.mark.slow
def test_biases_are_corrected_no_more() -> None:
    qconfig = fxq.QConfig(activation=QCONFIG.activation, weight=WEIGHT, correct_bias=True)
    result = fxq.adaround(prepared(qconfig=qconfig), data(), iterations=2, progress=False)
    assert torch.equal(fxq.convert(result).get_submodule("head").bias, made(Residual).head.bias)
    assert not torch.equal(fxq.convert(prepared(qconfig=qconfig)).get_submodule("head").bias, made(Residual).head.bias)


@pytest.mark.slow
def test_weights_may_be_all_that_is_in_integers() -> None:
    start = fxq.prepare(made(Shared), rows(), fxq.QConfig(activation=fxq.PlaceholderObserver, weight=WEIGHT))
    result: Any = fxq.adaround(start, data(Shared), iterations=FEW, rows=64, learning_rate=0.05, progress=False)
    assert [row.pattern for row in result.reconstruction] == ["weight_only_linear"] * 2
    x = rows(5)
    assert torch.allclose(fxq.convert(result)(x), fxq.convert(result, to="fake_quant")(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_tables_and_other_grids_are_left_and_named() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4)).eval()
    mapping = fxq.get_default_qconfig_mapping()
    batches = [torch.arange(10)]
    start = fxq.calibrate(fxq.prepare(model, batches[0], mapping), batches, progress=False)
    result: Any = fxq.adaround(start, batches, iterations=2, progress=False)
    assert [row.pattern for row in result.reconstruction] == ["linear"]
    assert "a table is read, not multiplied" in str(result.reconstruction)
    affine = fxq.QConfig(activation=QCONFIG.activation, weight=fxq.MinMaxObserver.with_args(dtype=torch.int8))
    simulated = fxq.prepare(made(Shared), rows(), affine, backend="reference")
    with pytest.raises(PlanError, match=r"no weight can be learned[\s\S]*symmetric qparams, and these are int8 affine"):
        fxq.adaround(fxq.calibrate(simulated, data(Shared), progress=False), data(Shared), progress=False)


def test_what_is_asked_for_must_make_sense() -> None:
    start = prepared(Shared)
    with pytest.raises(InputError, match="adaround takes what prepare gave"):
        fxq.adaround(nn.Linear(2, 2), data(Shared))  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="unknown choice of scales"):
        fxq.adaround(start, data(Shared), grids="msee")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"iterations is out of range[\s\S]*got: +0"):
        fxq.adaround(start, data(Shared), iterations=0)
    with pytest.raises(InputError, match=r"memory is no number of bytes"):
        fxq.adaround(start, data(Shared), memory=-1)
    with pytest.raises(InputError, match=r"seed is no whole number[\s\S]*got: +0.5"):
        fxq.adaround(start, data(Shared), seed=0.5)  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match="the calibration data holds no values"):
        fxq.adaround(start, [rows()[:0]], progress=False)
    with pytest.raises(InputError, match="data must be an iterable of batches"):
        fxq.adaround(start, rows())
    with pytest.raises(CalibrationError, match="there is no calibration data"):
        fxq.adaround(start, [])
    with pytest.raises(CalibrationError, match="have no range"):
        fxq.adaround(fxq.prepare(made(Shared), rows(), QCONFIG), data(Shared))
    with pytest.raises(InputError, match="this batch does not run through the model"):
        fxq.adaround(start, [torch.randn(4, 5)], progress=False)


def test_a_bar_shows_the_steps_of_all_units(capsys: pytest.CaptureFixture[str]) -> None:
    learned(Shared, iterations=2, progress=True)
    assert "adaround: 100%" in capsys.readouterr().err
    learned(Shared, iterations=2)
    assert capsys.readouterr().err == ""
