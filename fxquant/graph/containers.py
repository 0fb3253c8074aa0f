"""Containers of other classes than those that a graph holds itself: how a node makes them."""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

FACTORIES: dict[str, Callable[[], Any] | None] = {
    **{kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)},
    "None": None,
}
"""Name -> what a ``defaultdict`` calls for a missing key. A graph holds the name."""

OF_MAPPINGS = (dict, UserDict)
OF_SEQUENCES = (list, tuple, UserList, deque)
MADE_BY_NODES = (*OF_MAPPINGS, *OF_SEQUENCES)
"""Classes whose subclasses a node makes by calling them: with a mapping, or with a list."""

_IN_GRAPHS = (dict, list, tuple)


def is_of_own_class(value: Any) -> bool:
    """Tell whether a value is a container of another class than those that a graph holds itself."""
    kind = type(value)
    if kind in _IN_GRAPHS or not isinstance(value, MADE_BY_NODES):
        return kind is dict and any(isinstance(key, Enum) for key in value)  # generated code cannot spell its keys
    return not hasattr(kind, "_fields") and kind.__module__.partition(".")[0] != "torch"


def default_dict(factory: str, items: Sequence[tuple[Any, Any]]) -> defaultdict[Any, Any]:
    """Make a ``defaultdict``.

    Args:
        factory: A key of ``FACTORIES``.
        items: Its keys and values.
    """
    return defaultdict(FACTORIES[factory], items)


def maker_of(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Return the function that makes a container of a class of its own, and its arguments.

    None where the class does not make the same again of its items.

    Args:
        value: A container of which ``is_of_own_class`` is true.
    """
    kind = type(value)
    items: list[Any] = list(value.items() if isinstance(value, OF_MAPPINGS) else value)
    if kind is defaultdict:
        name = next((name for name, factory in FACTORIES.items() if factory is value.default_factory), None)
        return None if name is None else (default_dict, (name, items))
    return (kind, (items,)) if _makes_again(kind, value, items) else None


def _makes_again(kind: Callable[..., Any], value: Any, items: list[Any]) -> bool:
    if kind is OrderedDict:
        return True
    try:
        again: Any = kind(list(items))
        found = list(again.items()) if isinstance(value, OF_MAPPINGS) else list(again)
    except Exception:  # its constructor takes something else
        return False
    return type(again) is kind and _same_items(found, items) and _same_beside(value, again)


def _same_items(found: list[Any], items: list[Any]) -> bool:
    """Compare by identity: proxies of a trace give no truth value. An item of a mapping is a pair."""
    pairs = zip(found, items, strict=False)
    return len(found) == len(items) and all(a is b or _same_pair(a, b) for a, b in pairs)


def _same_pair(a: Any, b: Any) -> bool:
    return (
        type(a) is tuple
        and type(b) is tuple
        and len(a) == len(b) == 2
        and all(x is y for x, y in zip(a, b, strict=True))
    )


def _same_beside(value: Any, again: Any) -> bool:
    """Compare what instances hold beside their items: the length of a deque, attributes."""
    if isinstance(value, deque) and value.maxlen is not None:
        return False
    own, other = (getattr(each, "__dict__", {}) for each in (value, again))
    if not isinstance(own, Mapping) or set(own) != set(other):
        return False
    return all(name == "data" or own[name] is other[name] for name in own)
