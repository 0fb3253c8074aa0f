"""Biases that a runtime keeps as int32: the same whole multiples in every form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.passes.round_biases import LARGEST_BIAS

X = torch.randn(4, 6, 5, 5, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4)).eval()


def steps(layer, x_scale: torch.Tensor) -> torch.Tensor:
    scale = x_scale * layer.weight_scale
    whole = (layer.bias.detach() / scale).round()
    assert torch.equal(whole * scale, layer.bias)
    return whole


def test_biases_are_whole_multiples_in_all_forms():
    prepared = fxq.prepare(net(), X, backend="onnxruntime").calibrate([X], progress=False)
    reference, simulated = (fxq.convert(prepared, to=to) for to in ("reference", "fake_quant"))
    scale = {str(ref): qparams.scale for ref, qparams in reference.quant_plan.qparams.items()}
    assert steps(reference.get_submodule("0"), scale["input_1"]).abs().max() > 100
    assert steps(reference.get_submodule("4"), scale["_3"]).abs().max() > 100
    assert torch.equal(simulated.get_submodule("0").bias, reference.get_submodule("0").bias)
    assert torch.equal(reference(X), simulated(X))
    for backend in ("reference", "tensorrt"):
        plain = fxq.prepare(net(), X, backend=backend).calibrate([X], progress=False)
        layer = fxq.convert(plain, to="reference").get_submodule("4")
        with pytest.raises(AssertionError):
            steps(layer, scale["_3"])


def test_a_channel_without_weights_gets_a_scale_that_its_bias_fits():
    model = net()
    model[0].weight.data[3] *= 1e-20
    model[0].bias.data[3] = 5.0
    prepared = fxq.prepare(model, X, backend="onnxruntime").calibrate([X], progress=False)
    reference = fxq.convert(prepared, to="reference")
    layer = reference.get_submodule("0")
    whole = steps(layer, reference.get_submodule("input_1_quantize").y_scale)
    assert LARGEST_BIAS * 0.99 < whole[3].abs() <= LARGEST_BIAS * 1.01
    assert (reference(X) - model(X)).abs().max() < 0.1


def test_a_learned_rounding_whose_bias_does_not_fit_is_named():
    model = net()
    model[0].weight.data[3] *= 1e-20
    model[0].bias.data[3] = 5.0
    default = fxq.get_default_qconfig()
    own = fxq.QConfig(default.activation, fxq.AdaRoundFakeQuantize.with_args(observer=default.weight))
    mapping = fxq.get_default_qconfig_mapping().set_module_name("0", own)
    prepared = fxq.prepare(model, X, mapping, backend="onnxruntime").calibrate([X], progress=False)
    with pytest.raises(fxq.FxQuantError, match="a bias does not fit int32") as caught:
        fxq.convert(prepared, to="reference")
    assert "its rounding was learned on these scales" in str(caught.value)
