"""Hooks of modules that are traced through: what they compute is part of the graph, what else they do is told.

Hooks of gradients that parameters have are carried over to a copy of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fxquant.errors import listing, warn


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
