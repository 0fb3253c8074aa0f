"""Fake-quantize constructors in a QConfig: every one is prepared with, calibrates, simulates, trains, becomes int8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant import fake_quantize
from fxquant.errors import CalibrationError, PassError, SpecError
from fxquant.fake_quantize import (
    AdaRoundFakeQuantize,
    FakeQuantize,
    FakeQuantizeBase,
    LearnableFakeQuantize,
    default_embedding_fake_quant,
    default_embedding_fake_quant_4bit,
    default_fake_quant,
    default_weight_fake_quant,
)
from fxquant.observers import MinMaxObserver, MovingAverageMinMaxObserver, PerChannelMinMaxObserver
from fxquant.plan.spec import QScheme
from tests.sampling import one_of

SYMMETRIC = {"quant_min": -128, "quant_max": 127, "dtype": torch.int8, "qscheme": "per_tensor_symmetric"}

ACTIVATIONS = {
    name: getattr(fake_quantize, name)
    for name in (
        "default_fake_quant",
        "default_dynamic_fake_quant",
        "default_histogram_fake_quant",
        "default_fused_act_fake_quant",
        "default_fixed_qparams_range_0to1_fake_quant",
        "default_fixed_qparams_range_neg1to1_fake_quant",
    )
} | {"learnable": LearnableFakeQuantize}

WEIGHTS = {
    name: getattr(fake_quantize, name)
    for name in (
        "default_weight_fake_quant",
        "default_per_channel_weight_fake_quant",
        "default_fused_wt_fake_quant",
        "default_fused_per_channel_wt_fake_quant",
        "fused_wt_fake_quant_range_neg_127_to_127",
        "fused_per_channel_wt_fake_quant_range_neg_127_to_127",
    )
} | {"learnable": LearnableFakeQuantize.with_args(**SYMMETRIC), "adaround": AdaRoundFakeQuantize}

PAIRS = [(activation, "default_weight_fake_quant") for activation in ACTIVATIONS] + [
    ("default_fake_quant", weight) for weight in WEIGHTS
]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.up, self.head = nn.ConvTranspose2d(6, 4, 2), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.up(torch.relu(self.bn(self.conv(x)))))
        return self.head(x.mean((2, 3)))


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(4, 3, 8, 8, generator=generator) for _ in range(3)]


def calibrated(activation: Any, weight: Any = default_weight_fake_quant) -> fxq.Quantizer:
    torch.manual_seed(0)
    prepared = fxq.prepare(Model().eval(), (batches()[0],), fxq.QConfig(activation=activation, weight=weight))
    return fxq.calibrate(prepared, batches(), progress=False)


@pytest.mark.parametrize(("activation", "weight"), one_of(3, PAIRS))
def test_each_becomes_int8_within_the_contract_and_its_simulation_trains(activation: str, weight: str) -> None:
    prepared = calibrated(ACTIVATIONS[activation], WEIGHTS[weight])
    x = batches()[0]
    dynamic = activation == "default_dynamic_fake_quant"
    assert (prepared.coverage().int8_macs == 1) is not dynamic  # which linear and recurrent layers alone do
    int8 = fxq.convert(prepared, check=x)
    assert int8.parity.breaches == ()
    simulated = fxq.convert(prepared, to="fake_quant").train()
    simulated(x).square().sum().backward()
    weights = ("head",) if dynamic else ("conv", "up", "head")
    for path in weights:
        assert simulated.get_submodule(path).weight.grad.isfinite().all()
        if "fixed" not in activation:  # that grid clips most of what is not the result of a sigmoid
            assert simulated.get_submodule(path).weight.grad.abs().sum() > 0


@pytest.mark.parametrize("activation", ["default_fake_quant", "default_fused_act_fake_quant"])
def test_the_grids_are_those_of_the_observer_inside(activation: str) -> None:
    """Calibration measures the float model: nothing that is seen was rounded before."""
    constructor = ACTIVATIONS[activation]
    reduce = constructor.arguments.get("reduce_range", False)
    observer = MovingAverageMinMaxObserver.with_args(dtype=torch.uint8, reduce_range=reduce)
    mine, plain = calibrated(constructor), calibrated(observer)
    assert mine.plan.units == plain.plan.units
    qparams, expected = fxq.convert(mine).quant_plan.qparams, fxq.convert(plain).quant_plan.qparams
    assert all(qparams[ref].same_qparams(expected[ref]) for ref in expected)


@pytest.mark.parametrize("weight", [default_embedding_fake_quant, default_embedding_fake_quant_4bit])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_tables_of_embeddings(weight: Any, kind: type) -> None:
    torch.manual_seed(0)
    model, rows = nn.Sequential(kind(10, 6), nn.Linear(6, 3)).eval(), torch.tensor([[1, 2, 9], [0, 1, 1]])
    table = fxq.QConfig(activation=default_fake_quant, weight=weight)
    rest = fxq.QConfig(activation=default_fake_quant, weight=default_weight_fake_quant)
    config = fxq.QConfigMapping().set_global(rest).set_object_type(kind, table)
    prepared = fxq.calibrate(fxq.prepare(model, (rows,), config), [rows], progress=False)
    int8 = fxq.convert(prepared, check=rows)
    assert int8.parity.breaches == ()
    assert int8.get_submodule("0").bits == (4 if weight is default_embedding_fake_quant_4bit else 8)
    simulated = fxq.convert(prepared, to="fake_quant").train()
    simulated(rows).square().sum().backward()
    assert simulated.get_submodule("0").weight.grad.abs().sum() > 0


def test_what_was_never_calibrated_is_named() -> None:
    for activation in (default_fake_quant, LearnableFakeQuantize, ACTIVATIONS["default_fused_act_fake_quant"]):
        qconfig = fxq.QConfig(activation=activation, weight=default_weight_fake_quant)
        prepared = fxq.prepare(nn.Sequential(nn.Linear(3, 3)).eval(), (torch.randn(2, 3),), qconfig)
        with pytest.raises(CalibrationError, match="1 values have no range"):
            fxq.convert(prepared)


def test_a_state_keeps_the_calibration() -> None:
    prepared, x = calibrated(default_fake_quant), batches()[0]
    qconfig = fxq.QConfig(activation=default_fake_quant, weight=default_weight_fake_quant)
    torch.manual_seed(0)
    fresh = fxq.prepare(Model().eval(), (x,), qconfig)
    fresh.load_state_dict(prepared.state_dict())
    assert torch.equal(fxq.convert(fresh)(x), fxq.convert(prepared)(x))


class Halved(FakeQuantize):
    """A user's own: it looks at half of the values only, and says how often it was called."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.cat([super().forward(x[: len(x) // 2]), x[len(x) // 2 :]])


class FromTheBase(FakeQuantizeBase):
    """The least that a user can write."""

    scheme = QScheme(signed=False)

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.largest = max(self.largest, float(x.abs().max()))
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        return torch.tensor([self.largest / 127]), torch.tensor([128])


def test_a_users_own_forward_runs_while_calibrating() -> None:
    for own in (Halved, FromTheBase):
        prepared = calibrated(own)
        assert fxq.convert(prepared, check=batches()[0]).parity.breaches == ()
    halved = calibrated(Halved)
    assert all(observer.calls == len(batches()) for observer in halved.observers.values())
    average = calibrated(MovingAverageMinMaxObserver.with_args(dtype=torch.uint8))
    assert halved.observers["x"].activation_post_process.max_val != average.observers["x"].max_val


def test_a_base_class_without_a_grid_is_refused() -> None:
    class NoScheme(FakeQuantizeBase):
        def forward(self, x: Tensor) -> Tensor:
            return x

        def calculate_qparams(self) -> tuple[Tensor, Tensor]:
            return torch.ones(1), torch.zeros(1)

    with pytest.raises(SpecError) as caught:
        fxq.QConfig(activation=NoScheme, weight=default_weight_fake_quant)
    assert "NoScheme" in str(caught.value)
    assert "one of your own has a scheme (a QScheme, or None) and calculate_qparams()" in str(caught.value)


def test_learned_grids_per_channel_fit_the_layer() -> None:
    def per_channel(channels: int) -> Any:
        return LearnableFakeQuantize.with_args(
            observer=PerChannelMinMaxObserver,
            channel_len=channels,
            **{**SYMMETRIC, "qscheme": "per_channel_symmetric"},
        )

    def prepared(channels: int) -> fxq.Quantizer:
        torch.manual_seed(0)
        qconfig = fxq.QConfig(activation=default_fake_quant, weight=per_channel(channels))
        made = fxq.prepare(nn.Sequential(nn.Linear(3, 5)).eval(), (torch.randn(2, 3),), qconfig)
        return fxq.calibrate(made, [torch.randn(8, 3)], progress=False)

    x = torch.randn(4, 3)
    assert fxq.convert(prepared(5), check=x).parity.breaches == ()
    with pytest.raises(PassError) as caught:
        fxq.convert(prepared(4))
    assert "channel_len is not the number of channels" in str(caught.value)
    assert "got:      channel_len=4, 5 channels" in str(caught.value)


def test_fixed_grids_are_known_before_any_data() -> None:
    prepared = fxq.prepare(
        nn.Sequential(nn.Linear(3, 3), nn.Sigmoid()).eval(),
        (torch.rand(2, 3),),
        fxq.QConfig(
            activation=ACTIVATIONS["default_fixed_qparams_range_0to1_fake_quant"],
            weight=MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric"),
        ),
    )
    assert len(prepared.observers) == 0
    assert fxq.convert(prepared)(torch.rand(2, 3)).shape == (2, 3)
