"""Hooks of modules that are traced through: what they compute is part of the graph, what else they do is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fxquant.errors import listing, warn


@contextmanager
def watched_hooks(module: nn.Module, path: str, watching: dict[str, None]) -> Iterator[None]:
    """Note the path of a module, while it is called, if a hook of it returns nothing, and so only looks at values."""
    kept = [(hooks, dict(hooks)) for hooks in (module._forward_pre_hooks, module._forward_hooks)]
    for hooks, items in kept:
        for key, hook in items.items():
            hooks[key] = _watched(hook, path, watching)
    try:
        yield
    finally:
        for hooks, items in kept:
            hooks.update({key: items[key] for key in hooks if key in items})


def _watched(hook: Callable[..., Any], path: str, watching: dict[str, None]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        result = hook(*args, **kwargs)
        if result is None:
            watching[path] = None
        return result

    return watched


def warn_of_hooks(watching: dict[str, None]) -> None:
    """Warn of hooks that ran once, while tracing, and will not run again."""
    if watching:
        first = next(iter(watching))
        warn(
            "hooks that only look at values ran once, while the model was traced, and will not run again",
            got=listing(list(watching)),
            hint=f'leaf_modules=("{first}",) keeps a module whole and in float, with its hooks',
        )
