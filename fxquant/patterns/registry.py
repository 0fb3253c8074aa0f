"""The patterns that are known: those of this package, and those that users register."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar, overload

from torch import nn

from fxquant.errors import DuplicateNameError, SpecError, UnknownNameError
from fxquant.graph.query import function_name
from fxquant.patterns.defaults import DEFAULT_PATTERNS
from fxquant.patterns.pattern import Op, Pattern, op
from fxquant.registry import Registry

REGISTERED: Registry[Pattern] = Registry("pattern")
"""What users added. They are tried before the default patterns of the same size."""

H = TypeVar("H", bound=type)


def known_patterns() -> tuple[Pattern, ...]:
    """Return what ``prepare`` uses unless it is told otherwise."""
    return (*REGISTERED.values(), *DEFAULT_PATTERNS)


@overload
def register_pattern(pattern: Pattern) -> Pattern: ...
@overload
def register_pattern(pattern: Any) -> Callable[[H], H]: ...
def register_pattern(pattern: Any) -> Any:
    """Make a pattern known to every later ``prepare``.

    Args:
        pattern: A ``Pattern``; or, as a class decorator, a target or a nested tuple of targets, **output first**:
            ``(nn.ReLU, (nn.BatchNorm2d, MyConv))`` is a ReLU of a batch norm of a ``MyConv``. The decorated class is a
            handler: it is constructed for each match, as ``Handler(quantizer, node)`` or ``Handler()``, and has

            * ``observe(node, env)``: called for the root of the match on every calibration batch; ``env`` maps nodes,
              or their names, to values;
            * ``quantize(quantizer, node, load_arg)``: makes the int8 operator with ``quantizer.quantized_graph`` and
              answers the new node, or ``NotImplemented``: then every node of the match runs in float. It is called
              twice in every ``convert``, first on a copy of the graph, to hear whether it declines. ``load_arg``
              maps float nodes of the model to the nodes of their quantized values; ``quantizer.qparams(node)`` gives
              the qparams of these, ``quantizer.modules`` maps targets to modules;
            * optionally ``qparams()``: the qparams of the answered node. Without it the answer is a float.

    Returns:
        The pattern, as plans name it (``own.conv`` for one of the name of a default pattern); or a decorator that gives
        the class back.

    Raises:
        DuplicateNameError: a pattern of that name, or one with that tree, is registered already.
        SpecError: ``pattern`` is neither a pattern nor made of targets, or the class lacks a method.

    Example:
        >>> from torch import nn
        >>> from fxquant.patterns import Pattern, op, register_pattern, tensor, unregister_pattern
        >>> _ = register_pattern(Pattern("glu", root=op(nn.GLU)(tensor("x"))))
        >>> unregister_pattern("glu")
    """
    if isinstance(pattern, Pattern):
        return _add(pattern)
    tree = _from_tuple(pattern)

    def decorate(handler: H) -> H:
        for method in ("observe", "quantize"):
            if not callable(getattr(handler, method, None)):
                raise SpecError(
                    f"{handler.__name__} cannot handle a pattern: it has no method {method!r}",
                    expected="observe(self, node, env) and quantize(self, quantizer, node, load_arg)",
                )
        _add(Pattern(f"{handler.__name__}[{_text(tree)}]", root=tree, inputs=(), handler=handler))
        return handler

    return decorate


def unregister_pattern(name: str) -> None:
    """Forget a registered pattern.

    Raises:
        UnknownNameError: no registered pattern has that name.
    """
    REGISTERED.remove(name if name in REGISTERED else _own_name(name))


def in_own_namespace(pattern: Pattern) -> Pattern:
    """Return a pattern of the user's that has the name of a default one, under a name of its own.

    Plans and backends name patterns, so it would be lowered by the rule of the other.
    """
    taken = pattern not in DEFAULT_PATTERNS and any(pattern.name == other.name for other in DEFAULT_PATTERNS)
    return replace(pattern, name=_own_name(pattern.name)) if taken else pattern


def _own_name(name: str) -> str:
    return f"own.{name}" if any(name == other.name for other in DEFAULT_PATTERNS) else name


def _add(given: Pattern) -> Pattern:
    pattern = in_own_namespace(given)
    for other in REGISTERED.values():
        if other.root == pattern.root and other.name != pattern.name:
            raise DuplicateNameError(
                f"pattern {pattern.name!r} has the same tree as the registered pattern {other.name!r}",
                got=_text(pattern.root),
                hint=f"unregister_pattern({other.name!r}) first, if it should be replaced",
            )
    REGISTERED.add(pattern.name, pattern)
    return pattern


def by_name(patterns: Iterable[Pattern]) -> tuple[Pattern | str, ...]:
    """Patterns to pickle: those that everybody has as their names, since their targets may be functions that pickle
    cannot find."""
    known = {pattern.name: pattern for pattern in known_patterns()}
    return tuple(pattern.name if known.get(pattern.name) is pattern else pattern for pattern in patterns)


def from_names(patterns: Iterable[Pattern | str]) -> tuple[Pattern, ...]:
    """Return the patterns that ``by_name`` was given.

    Raises:
        UnknownNameError: nobody registered a pattern of that name here.
    """
    known = {pattern.name: pattern for pattern in known_patterns()}
    found = []
    for pattern in patterns:
        if isinstance(pattern, str) and pattern not in known:
            raise UnknownNameError(
                "this Quantizer was prepared with a pattern that is not registered here",
                got=repr(pattern),
                hint="import the module that registers it before unpickling",
            )
        found.append(known[pattern] if isinstance(pattern, str) else pattern)
    return tuple(found)


def module_types(patterns: Iterable[Pattern]) -> tuple[type[nn.Module], ...]:
    """Module types that patterns name: each of their calls must be one node."""
    targets = {target for pattern in patterns for target in pattern.root.all_targets}
    return tuple(target for target in targets if isinstance(target, type) and issubclass(target, nn.Module))


def _from_tuple(target: Any) -> Op:
    head, *arguments = target if isinstance(target, tuple) and target else (target,)
    if not (isinstance(head, str) or callable(head)):
        raise SpecError(
            "a pattern is made of targets", got=repr(head), expected="a module type, a function or a method name"
        )
    return op(head)(*(_from_tuple(argument) for argument in arguments))


def _text(tree: Any) -> str:
    if not isinstance(tree, Op):
        return tree.name
    names = "|".join(function_name(target) for target in tree.targets)
    return names + (f"({', '.join(_text(arg) for arg in tree.args)})" if tree.args else "")
