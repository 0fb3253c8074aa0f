"""Quantizes the layers of a model that cannot be traced: each is swapped for one that measures its own inputs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from fxquant.compat.configuration import qconfig_of
from fxquant.compat.preparation import Observing
from fxquant.errors import PlanError
from fxquant.plan.qconfig import QConfigMapping


def swap_layers(model: nn.Module, spec: Mapping[Any, Any], kinds: tuple[type[nn.Module], ...]) -> nn.Module:
    """Return a copy of a model in which layers are quantized, one by one, and all else runs as it is.

    Args:
        model: It is not changed.
        spec: QConfigs of module classes and of names. A name counts more than a class, and a class more than the name
            of a module around it, as in torch.ao.
        kinds: Classes of the layers that may be swapped. A class derived from one of them is left alone, since its
            forward, or a module around it, may read its weight.
    """
    copied = copy.deepcopy(model).eval()
    swapped: dict[nn.Module, nn.Module] = {}  # a layer at two places stays one
    for path, module in list(copied.named_modules(remove_duplicate=False)):
        if not path or type(module) not in kinds:
            continue
        qconfig = _qconfig_at(copied, spec, path)
        if qconfig is None:
            continue
        if module not in swapped:
            swapped[module] = _quantized(module, qconfig)
        copied.set_submodule(path, swapped[module])
    for module in copied.modules():
        _leave_fast_path(module)
    return copied


def _qconfig_at(model: nn.Module, spec: Mapping[Any, Any], path: str) -> Any:
    while True:
        if path in spec:
            return spec[path]
        kind = type(model.get_submodule(path))
        if kind in spec:
            return spec[kind]
        if not path:
            return None
        path = path.rpartition(".")[0]


def _quantized(layer: nn.Module, qconfig: Any) -> nn.Module:
    rules = QConfigMapping().set_global(qconfig_of(qconfig))
    try:
        return Observing(nn.Sequential(layer).eval(), None, rules).convert().get_submodule("0")
    except PlanError:
        return layer


def _leave_fast_path(module: nn.Module) -> None:
    """Have an encoder call its layers: in evaluation mode it would give their weights to one fused operator."""
    if isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0
    elif isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False
