"""Reads one call in any spelling, and gives the same call in the canonical spelling of a normalized graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fxquant.graph.layers import LAYERS
from fxquant.graph.operators.families import Operator
from fxquant.graph.operators.table import OPERATORS
from fxquant.graph.query import (
    BY_REQUEST,
    NAMED,
    ORIGINAL_FUNCTION,
    VALUE,
    canonical_type,
    has_hooks,
    is_number,
    module_of,
    value_of,
)

REGULARIZERS = {
    "torchvision.ops.stochastic_depth.stochastic_depth": ("input", "p", "mode", "training"),
    "torchvision.ops.drop_block.drop_block2d": ("input", "p", "block_size", "inplace", "eps", "training"),
    "torchvision.ops.drop_block.drop_block3d": ("input", "p", "block_size", "inplace", "eps", "training"),
}
"""Functions of a package that need not be installed, by name, each with its parameters."""

_FIRST_NAMES = ("input", "self", "x", "tensor", "tensors")
_IGNORED = ("_stacklevel",)


@dataclass(frozen=True, slots=True)
class Call:
    """One call in the canonical form: ``target(*args, **kwargs)``."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    drops: tuple[Any, dict[str, Any]] | None = None
    """Of a dropout in another spelling, a no-op now: what drops values while training, and its other arguments."""


def canonical_call(node: Node) -> Call | None:
    """Return the call that ``node`` would be in a normalized graph, in-place spellings taken as the plain ones.

    None if the node is no call, or of an operator that the table does not list, or spelled in a way that means more
    than the table says (``return_indices=True``, ``x.view(torch.int32)``, a module with hooks, numbers only).
    """
    if node.meta.get(BY_REQUEST) or NAMED in node.meta:
        return None
    if (idle := _idle_regularizer(node)) is not None:
        return idle
    known, arguments = _read(node)
    if known is None or arguments is None:
        return None
    known = _tensor_first(known, arguments, node.target)
    if known is None:
        return None
    if known.finish is not None:
        known.finish(arguments)
    target = known.target
    if target is F.hardtanh and (arguments["min_val"], arguments["max_val"]) == (0, 6):
        target = F.relu6
    names = ("input",) if target is F.relu6 else known.parameters
    kwargs = {name: arguments[name] for name, usual in known.keywords.items() if not _same(arguments[name], usual)}
    return Call(target, tuple(arguments[name] for name in names), kwargs)


def _idle_regularizer(node: Node) -> Call | None:
    """Read a dropout that is not active: it drops values while training, and gives its input back now."""
    target: Any = node.target
    name = f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', '')}"
    if node.op != "call_function" or name not in REGULARIZERS:
        return None
    parameters = REGULARIZERS[name]
    given = {**dict(zip(parameters, node.args, strict=False)), **node.kwargs}
    if given.pop("training", None) is not False:
        return None
    x = given.pop("input")
    return Call(F.dropout, (x, given["p"], False), {}, (target, given))


def _same(a: Any, b: Any) -> bool:
    return type(a) in (bool, int, float, str, type(None)) and a == b


def _read(node: Node) -> tuple[Operator | None, dict[str, Any] | None]:
    if node.op == "call_module":
        module = module_of(node)
        kind = None if module is None or has_hooks(module) else canonical_type(module)
        known = None if kind is None else operator_of(kind)
        return known, None if known is None else _read_module(known, node, module)
    if node.op not in ("call_function", "call_method"):
        return None, None
    known = operator_of(node.target)
    return known, None if known is None else _bind(known, node)


def _read_module(known: Operator, node: Node, module: Any) -> dict[str, Any] | None:
    given = [*node.args, *node.kwargs.values()]
    if len(given) != 1:
        return None
    first, *rest = known.parameters
    for name, value in known.fixed.items():
        if getattr(module, name, value) != value:
            return None
    arguments = {first: given[0]}
    for name in (*rest, *known.keywords):
        if name in known.attributes or not hasattr(module, name):
            arguments[name] = known.attributes.get(name, known.keywords.get(name))
        else:
            arguments[name] = getattr(module, name)
    return arguments


def _bind(known: Operator, node: Node) -> dict[str, Any] | None:
    """Parameter -> value, defaults filled in; None if the call cannot be bound to the parameters."""
    args = _unspread(known, node) if node.op == "call_method" else node.args
    order = (*known.parameters, *known.fixed, "inplace")
    if len(args) > len(order):
        return None
    # Positional arguments, then keywords, under the names that the operator has here.
    given = dict(zip(order, args, strict=False))
    for keyword, value in node.kwargs.items():
        name = known.synonyms.get(keyword, keyword)
        if name in _FIRST_NAMES and name not in known.parameters:
            name = known.parameters[0]
        if name in _IGNORED or (name == "out" and value is None):
            continue
        if name in given or (name not in order and name not in known.keywords):
            return None
        given[name] = value
    # Refuse what the canonical form cannot say.
    if not isinstance(given.pop("inplace", False), bool):
        return None
    for name, value in known.fixed.items():
        if given.pop(name, value) != value:
            return None
    if any(name not in given for name in known.required):
        return None
    if known.spread and is_dtype(given[known.spread]):
        return None
    return {**known.defaults, **known.keywords, **given}


def is_dtype(argument: Any) -> bool:
    """``x.view(torch.int32)`` reads the same bytes as another kind of number, as does ``x.view(y.dtype)``."""
    found = argument.meta.get(VALUE) if isinstance(argument, Node) else type(argument)
    return found is torch.dtype


def _unspread(known: Operator, node: Node) -> tuple[Any, ...]:
    """``x.permute(0, 2, 1)`` as ``x.permute((0, 2, 1))``."""
    if not known.spread or len(node.args) < 2:
        return node.args
    first, *rest = node.args
    if len(rest) == 1 and not is_number(rest[0]):
        return first, tuple(rest[0]) if isinstance(rest[0], list) else rest[0]
    return first, tuple(rest)


def _tensor_first(known: Operator, arguments: dict[str, Any], spelled: Any) -> Operator | None:
    """See to it that the first argument is a tensor: ``2 * x`` is ``x * 2``; ``1 + 2`` is none of our business."""
    first = known.parameters[0]
    value = arguments[first]
    if first == "tensors":
        return known if isinstance(value, (list, tuple)) and value else None
    if isinstance(value, Node) and (value_of(value) is not None or _unknown(value, spelled)):
        return known
    second = arguments.get("other")
    if not is_number(value) or not isinstance(second, Node) or value_of(second) is None:
        return None
    if known.commutative and arguments.get("alpha", 1) == 1:
        arguments[first], arguments["other"] = second, value
        return known
    if spelled is operator.sub:
        arguments[first], arguments["other"] = second, value
        return operator_of(torch.rsub)
    return None


def _unknown(value: Node, spelled: Any) -> bool:
    """A value that was never run counts as a tensor, but not for operators that numbers have too."""
    return VALUE not in value.meta and getattr(spelled, "__module__", "") != operator.add.__module__


def _index() -> dict[Any, Operator]:
    index: dict[Any, Operator] = {}
    for row in OPERATORS:
        for target in row.all_targets:
            other = index.setdefault(target, row)
            assert other is row, f"{target} is listed under {other.target} and {row.target}"
    return index


_BY_TARGET = _index()


def operator_of(target: Callable[..., Any] | type | str) -> Operator | None:
    """Return the row of the operator table that lists ``target`` (a function, a method's name, or a module type)."""
    try:
        return _BY_TARGET.get(target)
    except TypeError:  # an unhashable callable is no known operator
        return None


def canonical_target(target: Any) -> Any:
    """Return the one spelling of an operator.

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
    """Return every function, method name and module type that a user may mean when naming the operator of ``node``.

    That is ``nn.Linear`` for ``F.linear`` too, which may become one. Empty for nodes that call nothing.
    """
    if node.op not in ("call_module", "call_function", "call_method"):
        return ()
    target: Any = node.meta.get(ORIGINAL_FUNCTION, node.target)
    if node.op == "call_module" and ORIGINAL_FUNCTION not in node.meta:
        module = module_of(node)
        target = None if module is None else canonical_type(module)
        if target is None:
            return ()
    return spellings_of(target)


def spellings_of(target: Any) -> tuple[Any, ...]:
    """Return every function, method name and module type that stands for the operator of ``target``, itself first."""
    operator = operator_of(target)
    if operator is None:
        return (target,)
    layers = LAYERS[target].kinds if target in LAYERS else ()
    return tuple(dict.fromkeys((target, *operator.all_targets, *layers)))
