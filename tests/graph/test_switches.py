"""Switches of torch.ao that know its own layers alone reach those of this package."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.compat.quantization import get_default_qat_qconfig_mapping
from fxquant.compat.quantize_fx import prepare_qat_fx
from fxquant.graph.switches import SWITCHES, own_switch

qat = pytest.importorskip("torch.ao.nn.intrinsic.qat")

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train()


def trained() -> dict[str, nn.Module]:
    compat = prepare_qat_fx(net(), get_default_qat_qconfig_mapping(), (X,))
    return {"compat": compat, "own": fxq.prepare_qat(net(), X), "inside": nn.Sequential(fxq.prepare_qat(net(), X))}


def statistics(model: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for name, value in model.state_dict().items() if "running" in name]


@pytest.mark.parametrize("kind", ["compat", "own", "inside"])
def test_statistics_are_frozen_and_updated_by_the_functions_of_torch_ao(kind: str) -> None:
    model = trained()[kind]
    model(X)
    model.apply(qat.freeze_bn_stats)
    before = statistics(model)
    model(3 * X + 1)
    assert len(before) == 2
    assert all(map(torch.equal, statistics(model), before))
    model.apply(qat.update_bn_stats)
    model(3 * X + 1)
    assert not any(map(torch.equal, statistics(model), before))


def test_other_functions_stay_what_they_are() -> None:
    def freeze_bn_stats(module: nn.Module) -> None:
        """Somebody's own."""

    assert own_switch(freeze_bn_stats) is freeze_bn_stats
    assert own_switch(fxq.freeze_bn_stats) is fxq.freeze_bn_stats
    assert own_switch(X.add) == X.add  # without a module
    assert sorted(SWITCHES) == ["freeze_bn_stats", "update_bn_stats"]
