"""Finds where patterns fit a graph. Knows structure only: configuration and back ends are for the annotate pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from fxquant.graph.query import canonical_type, function_name, module_of, own_forward
from fxquant.patterns.pattern import Input, Match, Mismatch, Op, Pattern


@dataclass(frozen=True, slots=True)
class _Fit:
    """A partial match: the operators seen so far in topological order, and what the names stand for."""

    nodes: tuple[Node, ...] = ()
    captures: Mapping[str, Any] = field(default_factory=dict)


class PatternIndex:
    """Finds the patterns that may end in a node: larger ones first, in the given order where they are of one size."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._by_target: dict[Any, dict[int, Pattern]] = defaultdict(dict)
        for rank, pattern in enumerate(sorted(patterns, key=lambda pattern: -pattern.root.size)):
            for target in pattern.root.targets:
                self._by_target[target][rank] = pattern

    def ending_in(self, node: Node) -> tuple[Pattern, ...]:
        """Return the patterns whose root ``node`` may be: no other pattern matches there."""
        found: dict[int, Pattern] = {}
        for target in _called(node):
            found.update(self._by_target.get(target, {}))
        return tuple(found[rank] for rank in sorted(found))


def match(pattern: Pattern, root: Node) -> Match | Mismatch:
    """Fit ``pattern`` with its root at ``root``.

    Interior nodes must have the match as their only user; the root and the inputs are free. A captured input must lie
    outside the match. A name that stands at several places of the tree stands for one value.
    """
    fits = _fit(pattern.root, root, pattern.name, 0)
    if isinstance(fits, Mismatch):
        return fits
    nodes, captures = fits[0].nodes, dict(fits[0].captures)
    inputs = tuple(name for capture in pattern.inputs for name in _expand(capture, captures))
    if pattern.handler is not None:
        outside = dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes if arg not in nodes)
        inputs = tuple(f"x{i}" for i in range(len(outside)))
        captures.update(zip(inputs, outside, strict=True))
    return Match(pattern, nodes, captures, inputs)


def _expand(capture: str, captures: Mapping[str, Any]) -> Iterator[str]:
    if capture in captures:
        yield capture
        return
    count = 0
    while f"{capture}{count}" in captures:
        yield f"{capture}{count}"
        count += 1


def _fit(tree: Op, node: Node, pattern: str, matched: int) -> list[_Fit] | Mismatch:
    """Return every way in which ``tree`` fits at ``node``: more than one where operands can be swapped.

    ``matched`` counts the operators of the pattern that fitted so far.
    """
    if not _is_call_of(node, tree.targets):
        return Mismatch(pattern, node, f"not a call of {_names(tree.targets)}", matched)
    if matched and len(node.users) > 1:
        return Mismatch(pattern, node, f"its value has {len(node.users)} readers, so it cannot be fused away", matched)
    orders = [tree.args]
    if tree.commutative:
        orders.append((tree.args[1], tree.args[0], *tree.args[2:]))
    found: list[_Fit] = []
    failures: list[Mismatch] = []
    for args in orders:
        fits = _fit_arguments(args, node, pattern, matched + 1)
        if isinstance(fits, Mismatch):
            failures.append(fits)
        else:
            found += [_Fit((*fit.nodes, node), {**fit.captures, **_named(tree.name, node)}) for fit in fits]
    return found or max(failures, key=lambda failure: failure.matched)


def _fit_arguments(args: tuple[Op | Input, ...], node: Node, pattern: str, matched: int) -> list[_Fit] | Mismatch:
    if len(node.args) < len(args):
        return Mismatch(pattern, node, f"has {len(node.args)} positional arguments, {len(args)} are needed", matched)
    fits = [_Fit()]
    for tree, value in zip(args, node.args, strict=False):
        found = _fit_argument(tree, value, node, pattern, matched + len(fits[0].nodes))
        if isinstance(found, Mismatch):
            return found
        fits = [joined for fit in fits for one in found if (joined := _join(fit, one)) is not None]
        if not fits:
            return Mismatch(pattern, node, "two of its operands should be the same value", matched)
    direct = [tree.name for tree in args if isinstance(tree, Input)]
    outside = [fit for fit in fits if not any(fit.captures.get(name) in fit.nodes for name in direct)]
    return outside or Mismatch(
        pattern, node, "both operands are the same value, which cannot be fused away", matched + len(fits[0].nodes)
    )


def _fit_argument(tree: Op | Input, value: Any, node: Node, pattern: str, matched: int) -> list[_Fit] | Mismatch:
    if isinstance(tree, Op):
        if not isinstance(value, Node):
            return Mismatch(pattern, node, f"{value!r} stands where {_names(tree.targets)} should", matched)
        return _fit(tree, value, pattern, matched)
    if tree.constant and not isinstance(value, (int, float)):
        return Mismatch(pattern, node, f"{value!r} stands where a number should", matched)
    if not tree.many:
        return [_Fit(captures={tree.name: value})]
    if not isinstance(value, (list, tuple)):
        return Mismatch(pattern, node, f"{value!r} stands where a list of tensors should", matched)
    return [_Fit(captures={f"{tree.name}{i}": item for i, item in enumerate(value)})]


def _join(a: _Fit, b: _Fit) -> _Fit | None:
    """Both, unless a name stands for one value in ``a`` and for another in ``b``."""
    if any(name in a.captures and not _same(a.captures[name], value) for name, value in b.captures.items()):
        return None
    return _Fit(tuple(dict.fromkeys((*a.nodes, *b.nodes))), {**a.captures, **b.captures})


def _same(a: Any, b: Any) -> bool:
    return a is b if isinstance(a, Node) or isinstance(b, Node) else type(a) is type(b) and a == b


def _named(name: str, node: Node) -> dict[str, Node]:
    return {name: node} if name else {}


def _is_call_of(node: Node, targets: tuple[Any, ...]) -> bool:
    return any(target in targets for target in _called(node))


def _called(node: Node) -> tuple[Any, ...]:
    """Return what a pattern may name to mean the call: a function, a method's name, or the types of a module."""
    if node.op == "call_module":
        module = module_of(node)
        if module is None or own_forward(module) is not None:
            return ()
        return (canonical_type(module), type(module))
    return (node.target,) if node.op in ("call_function", "call_method") else ()


def _names(targets: tuple[Any, ...]) -> str:
    return " or ".join(function_name(target) for target in targets)
