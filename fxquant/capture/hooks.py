"""Captures what runs around the forward of a module: hooks, and what ``torch.nn.utils`` computes weights by.

Hooks of a module that is traced through become part of the graph; those that are lost are warned of. Hooks of gradients
are carried over to a copy of the model. Computed weights become plain ones, or, for training, are computed by modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils import _pytree as pytree

from fxquant.errors import listing, warn
from fxquant.graph.constants import COMPUTATION, TensorComputation


@dataclass(frozen=True, slots=True)
class LostHooks:
    """Paths of modules that were traced through and have hooks which will not run in the graph."""

    of_values: dict[str, None] = field(default_factory=dict)
    """Those that return nothing: they ran once."""
    of_gradients: dict[str, None] = field(default_factory=dict)
    """Those of the backward pass: they did not run."""

    def warn(self) -> None:
        """Warn of them by name."""
        told = (
            (
                self.of_values,
                "hooks that only look at values ran once, while the model was traced, and will not run again",
            ),
            (self.of_gradients, "hooks of the backward pass do not run where a module is traced through"),
        )
        for paths, what in told:
            if paths:
                first = next(iter(paths))
                warn(
                    what,
                    got=listing(list(paths)),
                    hint=f'leaf_modules=("{first}",) keeps a module whole and in float, with its hooks',
                )


@contextmanager
def watched_hooks(module: nn.Module, path: str, lost: LostHooks) -> Iterator[None]:
    """While a module is called, note its path if it has hooks that will be lost; those of the backward pass rest."""
    backward = [(hooks, dict(hooks)) for hooks in (module._backward_pre_hooks, module._backward_hooks)]
    if any(items for _, items in backward):
        lost.of_gradients[path] = None
    for hooks, _ in backward:
        hooks.clear()  # they would look for the gradients of proxies
    kept = [(hooks, dict(hooks)) for hooks in (module._forward_pre_hooks, module._forward_hooks)]
    for hooks, items in kept:
        for key, hook in items.items():
            hooks[key] = _watched(hook, path, lost.of_values)
    try:
        yield
    finally:
        for hooks, items in kept:
            hooks.update({key: items[key] for key in hooks if key in items})
        for hooks, items in backward:
            hooks.update(items)


@contextmanager
def hooks_that_compute(root: nn.Module) -> Iterator[set[int]]:
    """While a module is called, note its hooks that give another value, or change one in place, by their keys."""
    found: set[int] = set()
    kept = [(hooks, dict(hooks)) for hooks in (root._forward_pre_hooks, root._forward_hooks)]
    for hooks, items in kept:
        hooks.update({key: _watched_for_changes(hook, key, found) for key, hook in items.items()})
    try:
        yield found
    finally:
        for hooks, items in kept:
            hooks.update(items)


def _watched_for_changes(hook: Callable[..., Any], key: int, changing: set[int]) -> Callable[..., Any]:
    def watched(module: nn.Module, *given: Any) -> Any:
        before = _versions(given)
        result = hook(module, *given)
        if result is not None or _versions(given) != before:
            changing.add(key)
        return result

    return watched


def _versions(given: Any) -> list[tuple[int, int]]:
    return [(id(one), one._version if isinstance(one, Tensor) else 0) for one in pytree.tree_leaves(given)]


def _watched(hook: Callable[..., Any], path: str, watching: dict[str, None]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        result = hook(*args, **kwargs)
        if result is None:
            watching[path] = None
        return result

    return watched


def carry_over_gradient_hooks(model: nn.Module, copied: nn.Module) -> None:
    """Register the hooks of a model's parameters on those of the same name in a copy, which ``deepcopy`` leaves out.

    Those of ``register_hook`` map a gradient, whoever has it. Those of ``register_post_accumulate_grad_hook`` are given
    a parameter, and most look it up: they stay where they are, with a warning that names them.
    """
    left: list[str] = []
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    there = dict(copied.named_parameters(remove_duplicate=False))
    for parameter in model.parameters():
        own: Any = next((there[name] for name in names[id(parameter)] if name in there), None)
        if own is None or own is parameter:
            continue
        if parameter._post_accumulate_grad_hooks:
            left.append(names[id(parameter)][0])
        if not parameter._backward_hooks:
            continue
        trains = own.requires_grad
        own.requires_grad_(True)  # else torch takes no hook; it may be frozen for a while only
        for hook in parameter._backward_hooks.values():
            own.register_hook(hook)
        own.requires_grad_(trains)
    if left:
        warn(
            "hooks that run after a gradient was accumulated stay on the parameters of the float model",
            got=listing(left),
            hint="register them on the parameters of the model that trains",
        )


_UNSPLIT = (nn.MultiheadAttention, nn.RNNBase)
"""Modules that pass their weights on to one operator: they stay whole, and keep what computes these."""

_REMOVERS: dict[type, tuple[str, Callable[[Any, str], object]]] = {
    WeightNorm: ("name", remove_weight_norm),
    SpectralNorm: ("name", remove_spectral_norm),
    prune.BasePruningMethod: ("_tensor_name", prune.remove),
}
"""Hook -> where it keeps the name of the weight that it computes, and what makes that a plain parameter."""


def materialize_parametrizations(model: nn.Module) -> None:
    """Make plain weights of what ``torch.nn.utils`` computes: by parametrizations, weight and spectral norms, masks.

    They become frozen parameters: a tensor that is computed without gradients requires none, and torch sums products
    with a parameter that does in another order.

    Args:
        model: Changed in place, in the mode that it is in: a spectral norm in evaluation mode makes no iteration.
    """
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            _materialize(module)
        for hook in list(module._forward_pre_hooks.values()):
            for kind, (attribute, remove) in _REMOVERS.items():
                if isinstance(hook, kind):
                    name = getattr(hook, attribute)
                    remove(module, name)
                    _forget_state_hooks(module, hook)
                    getattr(module, name).requires_grad_(False)


def _forget_state_hooks(module: nn.Module, hook: Any) -> None:
    """Drop what a spectral norm does to state dicts, which torch leaves there: it asks for tensors that are gone."""
    for hooks in (module._state_dict_hooks, module._load_state_dict_pre_hooks):
        for key, wrapped in list(hooks.items()):
            if getattr(getattr(wrapped, "hook", wrapped), "fn", None) is hook:
                del hooks[key]


def _materialize(module: Any) -> None:
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
    """Tell whether ``torch.nn.utils`` computes a weight of a model: by a parametrization, a norm, a mask."""
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


def is_traced_through(module: nn.Module) -> bool:
    """Tell whether a layer of torch is traced through, because a module inside it computes one of its weights."""
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
    """Return a property for each weight that a hook computes; a module does so in place of the hook."""
    weights: dict[str, Any] = {}
    for key, hook in list(module._forward_pre_hooks.items()):
        for kind, (attribute, _) in _REMOVERS.items():
            if isinstance(hook, kind):
                name = getattr(hook, attribute)
                sources = [name + end for end in _SOURCES[kind]]
                del module._forward_pre_hooks[key]
                _forget_state_hooks(module, hook)
                vars(module).pop(name, None)
                module.add_module(COMPUTATION + name, HookedWeight(hook, sources).train(module.training))
                weights[name] = property(_computed_by(COMPUTATION + name, sources))
    return weights


def _computed_by(path: str, sources: Sequence[str]) -> Callable[[Any], Any]:
    return lambda module: module._modules[path](*(getattr(module, source) for source in sources))
