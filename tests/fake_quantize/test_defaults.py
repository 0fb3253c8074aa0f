"""The default configuration of training, and the presets: all of them are there, can be made, compared and pickled."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant import fake_quantize
from fxquant.fake_quantize import FakeQuantize
from fxquant.fake_quantize.defaults import get_default_qat_qconfig, get_default_qat_qconfig_mapping, get_lsq_qconfig
from fxquant.fake_quantize.fused import FusedMovingAvgObsFakeQuantize
from fxquant.fake_quantize.weight import WeightFakeQuantize


def test_grids_are_those_of_the_default_configuration_without_training():
    qconfig = get_default_qat_qconfig()
    assert str(qconfig.activation_scheme) == "uint8 affine per tensor"
    assert str(qconfig.weight_scheme) == "int8 symmetric per channel (axis 0)"
    assert isinstance(qconfig.activation(), FusedMovingAvgObsFakeQuantize)
    assert isinstance(qconfig.weight(), WeightFakeQuantize)


def test_embeddings_have_a_rule_of_their_own():
    mapping = get_default_qat_qconfig_mapping("cpu")
    rule = mapping.resolve("table", [nn.Embedding])
    assert rule.qconfig is not None
    assert rule.qconfig.activation_scheme is None
    assert rule.qconfig.weight_scheme.float_qparams
    assert pickle.loads(pickle.dumps(mapping)) == mapping


@pytest.mark.parametrize(("weight_bits", "activation_bits"), [(8, 8), (4, 4), (2, 8), (3, 2)])
def test_learned_steps_start_train_and_end_in_int8(weight_bits, activation_bits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).train()
    x = torch.randn(4, 3, 8, 8)
    qconfig = get_lsq_qconfig(weight_bits, activation_bits)
    assert (qconfig.weight_scheme.bits, qconfig.activation_scheme.bits) == (weight_bits, activation_bits)
    qat = fxq.prepare_qat(model, x, qconfig)
    weight_qparams = qat.get_submodule("0").weight_fake_quant
    assert weight_qparams.scale.shape == (8,)
    before = list(fxq.scale_parameters(qat))
    qat(x)
    qat.apply(fxq.enable_param_learning)
    started = weight_qparams.scale.detach().clone()
    assert (started != 1).all()
    optimizer = torch.optim.SGD(qat.parameters(), 0.01)
    qat(x).square().mean().backward()
    optimizer.step()
    assert all(a is b for a, b in zip(before, fxq.scale_parameters(qat), strict=True))
    assert not torch.equal(weight_qparams.scale, started)
    assert fxq.convert(qat.eval(), check=torch.randn(16, 3, 8, 8)).parity.breaches == ()


def test_learned_steps_go_on_learning_in_a_model_that_takes_the_state():
    x = torch.randn(4, 6)

    def build():
        torch.manual_seed(0)
        return fxq.prepare_qat(nn.Sequential(nn.Linear(6, 5)).train(), x, get_lsq_qconfig(4, 4))

    trained, resumed = build(), build()
    trained(x)
    trained.apply(fxq.enable_param_learning)
    resumed.load_state_dict(trained.state_dict())
    assert all(parameter.requires_grad for parameter in fxq.scale_parameters(resumed))
    gradients = []
    for model in (trained, resumed):
        model(x).square().sum().backward()
        gradients.append([parameter.grad for parameter in fxq.scale_parameters(model)])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_learned_steps_without_training():
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    prepared = fxq.prepare(nn.Sequential(nn.Linear(6, 5)).eval(), x, get_lsq_qconfig(4, 8))
    prepared(x)
    assert fxq.convert(prepared).get_submodule("0").weight_scale.shape == (5,)


def test_static_estimate_can_be_had_back():
    module = get_lsq_qconfig().activation()
    fxq.enable_param_learning(module)
    assert module.scale.requires_grad
    fxq.enable_static_estimate(module)
    assert not module.scale.requires_grad
    module(torch.tensor([0.0, 255.0]))
    assert module.scale.item() == pytest.approx(1.0, rel=0.05)


NAMES = [name for name in fake_quantize.__all__ if name.startswith(("default_", "fused_"))]


def test_there_are_all_that_users_know() -> None:
    assert len(NAMES) == 16


@pytest.mark.parametrize("name", NAMES)
def test_each_makes_modules_that_simulate(name: str) -> None:
    constructor = getattr(fake_quantize, name)
    module = constructor()
    assert isinstance(module, FakeQuantize)
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(module(x), x)
    assert pickle.loads(pickle.dumps(constructor)) == constructor
    assert constructor.with_args() == constructor
