"""The one spelling of an operator in a normalized graph, and all the spellings that stand for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Node

from fxquant.graph.layers import LAYERS
from fxquant.graph.operators.row import Operator
from fxquant.graph.operators.table import OPERATORS
from fxquant.graph.query import WRITTEN, canonical_type, module_of


def _index() -> dict[Any, Operator]:
    index: dict[Any, Operator] = {}
    for operator in OPERATORS:
        for target in operator.all_targets:
            other = index.setdefault(target, operator)
            assert other is operator, f"{target} is listed under {other.target} and {operator.target}"
    return index


_BY_TARGET = _index()


def operator_of(target: Callable[..., Any] | type | str) -> Operator | None:
    """The row of the operator table that lists ``target`` (a function, a method's name, or a module type)."""
    try:
        return _BY_TARGET.get(target)
    except TypeError:  # an unhashable callable is no known operator
        return None


def canonical_target(target: Any) -> Any:
    """The one spelling of an operator.

    Args:
        target: A function, the name of a tensor method, or a module type.

    Returns:
        The function that stands for it in a normalized graph (``F.relu`` for ``nn.ReLU``, ``torch.relu``, ``"relu"``,
        ``"relu_"``); ``target`` itself where there is only one spelling, or where the operator has parameters and so
        stays a module (``nn.Conv2d``, ``nn.Linear``, batch norms, dropouts).
    """
    operator = operator_of(target)
    return target if operator is None else operator.target


def spellings(node: Node) -> tuple[Any, ...]:
    """Every function, method name and module type that a user may mean when naming the operator of ``node``.

    That is ``nn.Linear`` for ``F.linear`` too, which may become one. Empty for nodes that call nothing.
    """
    if node.op not in ("call_module", "call_function", "call_method"):
        return ()
    target: Any = node.meta.get(WRITTEN, node.target)
    if node.op == "call_module" and WRITTEN not in node.meta:
        module = module_of(node)
        target = None if module is None else canonical_type(module)
        if target is None:
            return ()
    return spellings_of(target)


def spellings_of(target: Any) -> tuple[Any, ...]:
    """Every function, method name and module type that stands for the operator of ``target``, itself first."""
    operator = operator_of(target)
    if operator is None:
        return (target,)
    layers = LAYERS[target].kinds if target in LAYERS else ()
    return tuple(dict.fromkeys((target, *operator.all_targets, *layers)))
