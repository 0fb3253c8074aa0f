"""Reads where in the user's model a node of an exported program comes from."""

from __future__ import annotations

import functools
import sys
from typing import Any

from torch import nn
from torch.fx import Node

from fxquant.graph.module import STACK
from fxquant.graph.operators.spelling import operator_of
from fxquant.graph.query import NamedClass, canonical_class

Kind = type | NamedClass


def stack_of(node: Node) -> dict[str, tuple[str, Kind]]:
    """Return the modules in whose ``forward`` a node stands, as tracing notes them: key -> (path, class).

    The innermost comes last. Programs have the classes as text: they are looked up among what is imported already.
    """
    found = {}
    for key, (path, kind) in (node.meta.get(STACK) or {}).items():
        found[key] = (str(path).partition("@")[0], kind if isinstance(kind, type) else class_named(str(kind)))
    return found


def innermost(node: Node) -> tuple[str, Kind] | None:
    """Return path and class of the innermost module that a node stands in; None at the top, and where none is known."""
    found = list(stack_of(node).values())
    return found[-1] if found and found[-1][0] else None


def torch_class_of(kind: Kind) -> type[nn.Module] | None:
    """Return the class of ``torch.nn`` that computes what instances of a class do; None of what has its own forward."""
    return canonical_class(kind) if isinstance(kind, type) and issubclass(kind, nn.Module) else None


def is_call_of(target: Any, kind: Kind) -> bool:
    """Tell whether a function or method is what a module of a class of ``torch.nn`` calls."""
    own = torch_class_of(kind)
    row = None if own is None else operator_of(own)
    return row is not None and operator_of(target) is row


@functools.cache
def class_named(path: str) -> Kind:
    """Return the class of a name, ``torch.nn.modules.conv.Conv2d``; a ``NamedClass`` if it is not imported."""
    parts = path.split(".")
    for split in range(len(parts) - 1, 0, -1):
        module: Any = sys.modules.get(".".join(parts[:split]))
        if module is None:
            continue
        found = module
        for part in parts[split:]:
            found = getattr(found, part, None)
        return found if isinstance(found, type) else NamedClass(path)
    return NamedClass(path)
