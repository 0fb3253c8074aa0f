"""Simulations whose weights round in their own way: a file holds the integers, not what chose them."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from torch.fx import GraphModule

from fxquant.fake_quantize.adaround import KnownIntegers, OwnIntegersFakeQuantize
from fxquant.nn.fake_quantize import FakeQuantizedWeight


def with_known_integers(model: GraphModule) -> GraphModule:
    """Return the model itself, or a copy in which the integers of each weight are known, however they were found."""
    if not any(map(_rounds_in_its_own_way, model.modules())):
        return model
    copied: GraphModule = copy.deepcopy(model)
    for layer in copied.modules():
        if isinstance(layer, FakeQuantizedWeight) and _rounds_in_its_own_way(layer.weight_fake_quant):
            simulated: Any = layer.weight_fake_quant
            weight: Any = layer.weight
            found = simulated.rounding.integers(weight.detach())
            simulated.rounding = KnownIntegers(found, simulated.rounding.qparams())
    return copied


def _rounds_in_its_own_way(module: nn.Module) -> bool:
    return isinstance(module, OwnIntegersFakeQuantize) and not isinstance(module.rounding, KnownIntegers)
