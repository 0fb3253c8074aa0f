"""Finds where patterns fit a graph. Knows structure only: configuration and backends are the annotate pass's business."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from fxquant.graph.query import canonical_type, module_of
from fxquant.patterns.pattern import Input, Match, Mismatch, Op, Pattern


@dataclass(frozen=True, slots=True)
class _Fit:
    """A partial match: the operators seen so far in topological order, and what the names stand for."""

    nodes: tuple[Node, ...]
    captures: dict[str, Any]


def match(pattern: Pattern, root: Node) -> Match | Mismatch:
    """Fit ``pattern`` with its root at ``root``.

    Interior nodes must have the match as their only user; the root and the inputs are free. A captured input must lie
    outside the match.
    """
    fit = _fit(pattern.root, root, pattern.name, depth=0)
    if isinstance(fit, Mismatch):
        return fit
    inputs = tuple(name for role in pattern.inputs for name in _expand(role, fit.captures))
    if pattern.handler is not None:
        outside = dict.fromkeys(arg for node in fit.nodes for arg in node.all_input_nodes if arg not in fit.nodes)
        inputs = tuple(f"x{i}" for i in range(len(outside)))
        fit.captures.update(zip(inputs, outside, strict=True))
    return Match(pattern, fit.nodes, fit.captures, inputs)


def _expand(role: str, captures: dict[str, Any]) -> Iterator[str]:
    if role in captures:
        yield role
        return
    count = 0
    while f"{role}{count}" in captures:
        yield f"{role}{count}"
        count += 1


def _fit(tree: Op, value: Any, pattern: str, depth: int) -> _Fit | Mismatch:
    if not isinstance(value, Node):
        raise AssertionError("the caller passes nodes only")
    if not _is_call_of(value, tree.targets):
        return Mismatch(pattern, value, f"not a call of {_names(tree.targets)}", depth)
    if depth and len(value.users) > 1:
        return Mismatch(pattern, value, f"its value has {len(value.users)} readers, so it cannot be fused away", depth)
    orders = [tree.args]
    if tree.commutative:
        orders.append((tree.args[1], tree.args[0], *tree.args[2:]))
    failures = []
    for args in orders:
        fit = _fit_arguments(args, value, pattern, depth + 1)
        if isinstance(fit, _Fit):
            captures = {**fit.captures, **({tree.name: value} if tree.name else {})}
            return _Fit((*fit.nodes, value), captures)
        failures.append(fit)
    return max(failures, key=lambda failure: failure.matched)


def _fit_arguments(args: tuple[Op | Input, ...], node: Node, pattern: str, depth: int) -> _Fit | Mismatch:
    if len(node.args) < len(args):
        return Mismatch(pattern, node, f"has {len(node.args)} positional arguments, {len(args)} are needed", depth)
    nodes: tuple[Node, ...] = ()
    captures: dict[str, Any] = {}
    for tree, value in zip(args, node.args, strict=False):
        if isinstance(tree, Op):
            if not isinstance(value, Node):
                return Mismatch(pattern, node, f"{value!r} stands where {_names(tree.targets)} should", depth)
            inner = _fit(tree, value, pattern, depth)
            if isinstance(inner, Mismatch):
                return inner
            nodes += inner.nodes
            captures.update(inner.captures)
        elif tree.many:
            if not isinstance(value, (list, tuple)):
                return Mismatch(pattern, node, "its first argument is no list of tensors", depth)
            captures.update({f"{tree.name}{i}": item for i, item in enumerate(value)})
        else:
            captures[tree.name] = value
    for tree in args:
        if isinstance(tree, Input) and captures.get(tree.name) in nodes:
            return Mismatch(pattern, node, "both operands are the same value, which cannot be fused away", depth)
    return _Fit(nodes, captures)


def _is_call_of(node: Node, targets: tuple[Any, ...]) -> bool:
    if node.op == "call_module":
        module = module_of(node)
        return module is not None and (canonical_type(module) in targets or type(module) in targets)
    return node.op in ("call_function", "call_method") and node.target in targets


def _names(targets: tuple[Any, ...]) -> str:
    return " or ".join(target if isinstance(target, str) else target.__name__ for target in targets)
