"""Equalization configurations of ``prepare_fx``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.compat.equalization import EqualizationQConfig, default_equalization_qconfig
from fxquant.compat.observer import MinMaxObserver
from fxquant.compat.qconfig import default_qconfig
from fxquant.compat.qconfig_mapping import QConfigMapping
from fxquant.compat.quantize_fx import convert_fx, prepare_fx
from fxquant.errors import FxQuantWarning
from fxquant.measure.noise import sqnr

X = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    with torch.no_grad():
        large = torch.logspace(-1, 1, 32)[torch.randperm(32)]
        for makes, reads in ((0, 2), (2, 4)):
            model[makes].weight.mul_(large[:, None])
            model[makes].bias.mul_(large)
            model[reads].weight.div_(large)
    return model


def quality(net: nn.Module, equalization: object) -> float:
    mapping = QConfigMapping().set_global(default_qconfig)
    prepared = prepare_fx(net, mapping, (X,), _equalization_config=equalization)
    torch.testing.assert_close(prepared(X), net(X), rtol=1e-4, atol=1e-4)
    return sqnr(net(X), convert_fx(prepared)(X))


def test_layers_that_the_rules_name_are_equalized(net):
    alone = quality(net, None)
    one = quality(net, {"module_name": [("2", default_equalization_qconfig)]})
    both = quality(net, QConfigMapping().set_global(default_equalization_qconfig))
    assert alone + 3 < one < both - 3
    assert quality(net, QConfigMapping()) == alone
    assert quality(net, QConfigMapping().set_global(EqualizationQConfig())) == alone


@pytest.mark.filterwarnings("ignore")
def test_objects_of_torch_ao_are_taken(net):
    theirs = pytest.importorskip("torch.ao.quantization.fx._equalize").default_equalization_qconfig
    ao = pytest.importorskip("torch.ao.quantization")
    ours = quality(net, QConfigMapping().set_global(default_equalization_qconfig))
    assert quality(net, ao.QConfigMapping().set_global(theirs)) == ours


def test_nothing_is_equalized_without_example_inputs(net):
    mapping, scaling = QConfigMapping().set_global(default_qconfig), {"": default_equalization_qconfig}
    with pytest.warns(FxQuantWarning, match="nothing was equalized"):
        prepare_fx(net, mapping, None, _equalization_config=scaling)


def test_constructors_are_wanted():
    with pytest.raises(ValueError, match="pass observer class"):
        EqualizationQConfig(MinMaxObserver(), MinMaxObserver)
