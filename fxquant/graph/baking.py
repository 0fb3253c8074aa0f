"""Weights that torch computes anew for each call become plain ones, of the value that they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

_REMOVERS: dict[type, tuple[str, Callable[[Any, str], object]]] = {
    WeightNorm: ("name", remove_weight_norm),
    SpectralNorm: ("name", remove_spectral_norm),
    prune.BasePruningMethod: ("_tensor_name", prune.remove),
}
"""Hook -> where it keeps the name of the weight that it computes, and what bakes it in."""


def bake_weights(model: nn.Module) -> None:
    """Bake in what ``torch.nn.utils`` computes weights by: parametrizations, weight and spectral norms, pruning masks.

    Args:
        model: Changed in place, in the mode that it is in: a spectral norm in evaluation mode makes no iteration.
    """
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            _bake_parametrizations(module)
        for hook in list(module._forward_pre_hooks.values()):
            for kind, (attribute, remove) in _REMOVERS.items():
                if isinstance(hook, kind):
                    remove(module, getattr(hook, attribute))


def _bake_parametrizations(module: Any) -> None:
    """``remove_parametrizations`` would do, but it edits the class, which the user's own module shares with a copy."""
    values = {name: getattr(module, name).detach().clone() for name in module.parametrizations}
    module.__class__ = parametrize.type_before_parametrizations(module)
    del module.parametrizations
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value))
    for key, wrapped in list(module._load_state_dict_pre_hooks.items()):
        # That of weight_norm reads states of older versions; it is a local function, which cannot be pickled.
        if getattr(getattr(wrapped, "hook", wrapped), "__module__", "") == "torch.nn.utils.parametrizations":
            del module._load_state_dict_pre_hooks[key]
