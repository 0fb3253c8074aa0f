"""Weights that torch computes anew for each call: they become plain ones, or, for training, are computed by modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fxquant.graph.computed import COMPUTATION, TensorComputation

_UNSPLIT = (nn.MultiheadAttention, nn.RNNBase)
"""Modules that pass their weights on to one operator: they stay whole, and keep what computes these."""

_REMOVERS: dict[type, tuple[str, Callable[[Any, str], object]]] = {
    WeightNorm: ("name", remove_weight_norm),
    SpectralNorm: ("name", remove_spectral_norm),
    prune.BasePruningMethod: ("_tensor_name", prune.remove),
}
"""Hook -> where it keeps the name of the weight that it computes, and what bakes it in."""


def bake_weights(model: nn.Module) -> None:
    """Bake in what ``torch.nn.utils`` computes weights by: parametrizations, weight and spectral norms, pruning masks.

    They become frozen parameters: a tensor that is computed without gradients requires none, and torch sums products
    with a parameter that does in another order.

    Args:
        model: Changed in place, in the mode that it is in: a spectral norm in evaluation mode makes no iteration.
    """
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            _bake_parametrizations(module)
        for hook in list(module._forward_pre_hooks.values()):
            for kind, (attribute, remove) in _REMOVERS.items():
                if isinstance(hook, kind):
                    name = getattr(hook, attribute)
                    remove(module, name)
                    getattr(module, name).requires_grad_(False)


def _bake_parametrizations(module: Any) -> None:
    """``remove_parametrizations`` would do, but it edits the class, which the user's own module shares with a copy."""
    values = {name: getattr(module, name).detach().clone() for name in module.parametrizations}
    module.__class__ = parametrize.type_before_parametrizations(module)
    del module.parametrizations
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value, requires_grad=False))
    for key, wrapped in list(module._load_state_dict_pre_hooks.items()):
        # That of weight_norm reads states of older versions; it is a local function, which cannot be pickled.
        if getattr(getattr(wrapped, "hook", wrapped), "__module__", "") == "torch.nn.utils.parametrizations":
            del module._load_state_dict_pre_hooks[key]


def has_computed_weights(model: nn.Module) -> bool:
    """Whether ``torch.nn.utils`` computes a weight anywhere in a model."""
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    return any(map(parametrize.is_parametrized, model.modules())) or any(isinstance(h, tuple(_REMOVERS)) for h in hooks)


class HookedWeight(TensorComputation):
    """Computes what a hook of ``torch.nn.utils`` does, from the same tensors, in the mode that the module is in."""

    def __init__(self, hook: Any, sources: Sequence[str]) -> None:
        super().__init__()
        self.hook = hook
        self.sources = tuple(sources)

    def forward(self, *tensors: Tensor) -> Any:
        holder: Any = SimpleNamespace(**dict(zip(self.sources, tensors, strict=True)))
        if isinstance(self.hook, prune.BasePruningMethod):
            return self.hook.apply_mask(holder)
        if isinstance(self.hook, SpectralNorm):
            return self.hook.compute_weight(holder, do_power_iteration=self.training)
        return self.hook.compute_weight(holder)


_SOURCES: dict[type, tuple[str, ...]] = {
    WeightNorm: ("_g", "_v"),
    SpectralNorm: ("_orig", "_u", "_v"),
    prune.BasePruningMethod: ("_orig", "_mask"),
}
"""Hook -> the ends of the names of what it computes a weight of."""


def is_opened(module: nn.Module) -> bool:
    """Whether a module of torch is to be traced through while training, since a module in it computes a weight."""
    if isinstance(module, _UNSPLIT):
        return False
    return parametrize.is_parametrized(module) or any(name.startswith(COMPUTATION) for name in module._modules)


@contextmanager
def weights_by_modules(model: nn.Module) -> Iterator[None]:
    """Let modules compute what hooks of ``torch.nn.utils`` do; within the block, such a weight is an attribute.

    Args:
        model: Changed: it loses these hooks, and gets a module for each.
    """
    classes = []
    for module in list(model.modules()):
        weights = {} if isinstance(module, _UNSPLIT) else _take_hooks(module)
        if weights:
            classes.append((module, type(module)))
            module.__class__ = type(type(module).__name__, (type(module),), weights)
    try:
        yield
    finally:
        for module, kind in classes:
            module.__class__ = kind


def _take_hooks(module: nn.Module) -> dict[str, Any]:
    """A property for each weight that a hook computes; a module does so in place of the hook."""
    weights: dict[str, Any] = {}
    for key, hook in list(module._forward_pre_hooks.items()):
        for kind, (attribute, _) in _REMOVERS.items():
            if isinstance(hook, kind):
                name = getattr(hook, attribute)
                sources = [name + end for end in _SOURCES[kind]]
                del module._forward_pre_hooks[key]
                vars(module).pop(name, None)
                module.add_module(COMPUTATION + name, HookedWeight(hook, sources).train(module.training))
                weights[name] = property(_computed_by(COMPUTATION + name, sources))
    return weights


def _computed_by(path: str, sources: Sequence[str]) -> Callable[[Any], Any]:
    return lambda module: module._modules[path](*(getattr(module, source) for source in sources))
