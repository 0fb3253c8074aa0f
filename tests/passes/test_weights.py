"""A weight whose fake-quantize rounds in its own way is stored, and simulated, as that says; never rounded anew."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.fake_quantize import AdaRoundFakeQuantize, default_fake_quant, default_weight_fake_quant
from fxquant.observers import MinMaxObserver
from fxquant.plan.spec import QParams, QScheme

QPARAMS = {
    "per tensor": AdaRoundFakeQuantize.with_args(observer=MinMaxObserver),
    "per channel": AdaRoundFakeQuantize,
    "4 bits": AdaRoundFakeQuantize.with_args(bits=4, dtype=torch.int8, qscheme="per_channel_symmetric"),
}
LAYERS = {"relu": "conv", "up": "up", "head": "head"}
"""Root of the unit -> path of the layer."""


class Model(nn.Module):
    """A convolution with batch norm, a transposed one (channels on axis 1), and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.up, self.head = nn.ConvTranspose2d(6, 4, 2), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.up(torch.relu(self.bn(self.conv(x)))).mean((2, 3)))


def model() -> Model:
    torch.manual_seed(0)
    made = Model().eval()
    with torch.no_grad():
        made.bn.running_var.uniform_(0.5, 2.0)
        made.bn.weight.uniform_(-1.0, 1.0)
    return made


def batch(seed: int = 0) -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def calibrated(weight: Any) -> fxq.Quantizer:
    prepared = fxq.prepare(model(), (batch(),), fxq.QConfig(activation=default_fake_quant, weight=weight))
    return fxq.calibrate(prepared, [batch(1), batch(2)], progress=False)


def learned(prepared: fxq.Quantizer) -> fxq.Quantizer:
    """As if training had turned about half of the roundings."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for layer in prepared.weight_layers.values():
            rounding = layer.weight_fake_quant
            rounding.V.copy_(torch.randn(rounding.V.shape, generator=generator))
    return prepared


def expected_integers(layer: Any) -> Tensor:
    """``floor(w / s) + [V >= 0]``, written anew."""
    rounding = layer.weight_fake_quant
    axis = rounding.scheme.axis
    scale = rounding.scale.reshape([-1 if d == axis else 1 for d in range(layer.weight.dim())])
    return (torch.floor(layer.weight.detach() * (1 / scale)) + (rounding.V >= 0)).clamp(
        rounding.quant_min, rounding.quant_max
    )


@pytest.mark.parametrize("name", QPARAMS)
def test_convert_takes_the_integers_from_the_module_and_all_forms_agree(name: str) -> None:
    prepared = learned(calibrated(QPARAMS[name]))
    assert set(prepared.weight_layers) == set(LAYERS)
    int8, simulated = prepared.convert(), prepared.convert(to="fake_quant")
    reference = prepared.convert(to="reference")
    right = {LAYERS[root]: expected_integers(layer) for root, layer in prepared.weight_layers.items()}
    for root, path in LAYERS.items():
        layer, integers = prepared.weight_layers[root], right[path]
        qparams = layer.weight_fake_quant.qparams()
        along = [-1 if d == qparams.scheme.axis else 1 for d in range(integers.dim())]
        nearest = torch.round(layer.weight.detach() * (1 / qparams.scale.reshape(along)))
        assert (integers != nearest).float().mean() > 0.3, path
        assert torch.equal(reference.get_submodule(path).weight.float(), integers)
        fake = simulated.get_submodule(path)
        assert torch.equal(fake.weight_fake_quant(fake.weight), integers * qparams.scale.reshape(along))
    assert torch.equal(int8.get_submodule("head").weight.float(), right["head"])
    x = batch(3)
    assert torch.equal(simulated(x), reference(x))
    assert fxq.convert(prepared, check=x).parity.breaches == ()


def test_the_simulation_trains() -> None:
    simulated = learned(calibrated(AdaRoundFakeQuantize)).convert(to="fake_quant").train()
    simulated(batch()).square().sum().backward()
    for path in ("conv", "up", "head"):
        assert simulated.get_submodule(path).weight.grad.abs().sum() > 0


def test_rounding_is_learned_on_the_layers_alone() -> None:
    """The layer of ``weight_layers`` is what the float layer is, until its V moves; convert reads it, and no more."""
    prepared = calibrated(QPARAMS["4 bits"])
    layer = prepared.weight_layers["head"]
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(2))
    target = prepared.graph_module.head(x).detach()
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    int8 = prepared.convert()
    assert all(torch.equal(value, before[name]) for name, value in prepared.state_dict().items())
    rounding = layer.weight_fake_quant
    optimizer = torch.optim.Adam([rounding.V], lr=0.1)
    for _ in range(100):  # eq. 21 and 24 of the paper
        optimizer.zero_grad()
        undecided = 1 - (2 * rounding.rounding() - 1).abs() ** 3
        ((target - layer(x)).square().mean() * 100 + undecided.mean()).backward()
        optimizer.step()
    head = prepared.convert().get_submodule("head")
    assert torch.equal(head.weight.float(), expected_integers(layer))
    assert not torch.equal(head.weight, int8.get_submodule("head").weight)


def test_states_and_copies_keep_what_was_learned() -> None:
    prepared = learned(calibrated(AdaRoundFakeQuantize))
    fresh = fxq.prepare(model(), (batch(),), fxq.QConfig(activation=default_fake_quant, weight=AdaRoundFakeQuantize))
    fresh.load_state_dict(prepared.state_dict())
    x, right = batch(3), prepared.convert()(batch(3))
    assert not torch.equal(calibrated(AdaRoundFakeQuantize).convert()(x), right)
    for other in (fresh, copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        assert torch.equal(other.convert()(x), right)


def test_any_module_that_has_integers_is_asked() -> None:
    prepared = calibrated(RoundsDown)
    weight = prepared.graph_module.head.weight.detach()
    assert torch.equal(prepared.convert().get_submodule("head").weight.float(), torch.floor(weight * 8))


def test_a_weight_that_two_calls_share_is_rounded_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.relu(self.layer(x)))

    torch.manual_seed(0)
    qconfig = fxq.QConfig(activation=default_fake_quant, weight=AdaRoundFakeQuantize)
    prepared = fxq.prepare(Twice().eval(), (torch.randn(3, 4),), qconfig)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    learned(fxq.calibrate(prepared, [x], progress=False))
    assert len(prepared.weight_layers) == 2
    assert torch.equal(prepared.convert(to="fake_quant")(x), prepared.convert(to="reference")(x))


def test_there_are_no_layers_where_weights_round_to_nearest() -> None:
    assert len(calibrated(default_weight_fake_quant).weight_layers) == 0


class RoundsDown(nn.Module):
    scheme = QScheme(symmetric=True)

    def forward(self, x: Tensor) -> Tensor:
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        qparams = self.qparams()
        return qparams.scale, qparams.zero_point

    def qparams(self) -> QParams:
        return QParams(self.scheme, torch.tensor([0.125]), torch.zeros(1, dtype=torch.int32))

    def integers(self, x: Tensor) -> Tensor:
        return torch.floor(x * 8).clamp(-128, 127).to(torch.int8)
