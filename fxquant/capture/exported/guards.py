"""Checks that inputs are of the sizes that a program was exported for: it would compute something else on others."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from fxquant.capture.trace_guards import require_exported, require_value
from fxquant.errors import TracingError

_OPERATORS: Mapping[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

_FUNCTIONS: Mapping[str, Any] = {"torch.sym_max": torch.sym_max, "torch.sym_min": torch.sym_min, "max": max, "min": min}

FAILED = "Guard failed: "
"""What the messages of torch's own checks begin with; the condition stands after it."""


class UnreadableGuardError(Exception):
    """A condition is none of sizes and numbers."""


class Guards:
    """Writes checks of the inputs into a graph.

    Args:
        graph: Its inputs are there already.
        structures: Name of an argument -> its value, as nodes: a node, or lists, tuples and dicts of such.
    """

    def __init__(self, graph: Graph, structures: Mapping[str, Any]) -> None:
        self._graph = graph
        self._structures = structures
        self._sizes: dict[tuple[Node, int], Node] = {}
        self._fixed: set[tuple[Node, int]] = set()
        self._calls: dict[tuple[Any, ...], Node] = {}
        """What is written already: conditions of all layers begin with the same sizes."""

    def write(self, condition: str) -> None:
        """Write the check of a condition, as torch prints it: ``x.size()[1] == 4``.

        Raises:
            UnreadableGuardError: it is made of something else than sizes and numbers.
        """
        tree = ast.parse(condition, mode="eval").body
        if isinstance(tree, ast.Compare) and isinstance(tree.ops[0], (ast.Eq, ast.Is)) and len(tree.ops) == 1:
            value, expected = tree.left, tree.comparators[0]
            if isinstance(expected, ast.Constant):
                self._require(self._value(value), expected.value, ast.unparse(value), condition)
                return
        self._graph.call_function(require_exported, (self._value(tree), True, condition))

    def _require(self, value: Any, expected: Any, name: str, condition: str) -> None:
        if not isinstance(value, Node):
            raise UnreadableGuardError
        if value.op == "placeholder" or expected is None or isinstance(expected, (bool, str)):
            self._graph.call_function(require_value, (value, expected, name))
            return
        self._fixed |= {place for place, size in self._sizes.items() if size is value}
        self._graph.call_function(require_exported, (value, expected, condition))

    def pin(self, condition: str, examples: Mapping[Node, Any]) -> None:
        """Write, for a condition that cannot be read, that the sizes in it are those on export: there it held.

        Args:
            condition: As torch prints it.
            examples: What the program knows of each input.

        Raises:
            TracingError: such a size is not known.
        """
        for tree in ast.walk(ast.parse(condition, mode="eval")):
            if not (isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Call)):
                continue
            try:
                size = self._subscript(tree)
                leaf, dim = next(place for place, node in self._sizes.items() if node is size)
                known = _size_on_export(examples[leaf], dim)
            except UnreadableGuardError:
                size = known = None
            if size is None or known is None:
                raise TracingError(
                    "a condition on the sizes of inputs cannot be checked",
                    at=condition,
                    hint="export it with this dimension as a number, or prepare the model that it was exported of",
                )
            self._graph.call_function(require_exported, (size, known, f"{ast.unparse(tree)}, of which {condition}"))

    def write_shape(self, leaf: Node, shape: Sequence[Any], name: str) -> None:
        """Write checks of the sizes of an input that are numbers, where no condition does that."""
        for dim, size in enumerate(shape):
            if isinstance(size, int) and (leaf, dim) not in self._fixed:
                self._fixed.add((leaf, dim))
                args = self._size(leaf, dim), size, f"{name}.size()[{dim}] == {size}"
                self._graph.call_function(require_exported, args)

    def _size(self, leaf: Node, dim: int) -> Node:
        if (leaf, dim) not in self._sizes:
            self._sizes[leaf, dim] = self._graph.call_method("size", (leaf, dim))
        return self._sizes[leaf, dim]

    def _value(self, tree: ast.AST) -> Any:
        if isinstance(tree, ast.Constant):
            return tree.value
        if isinstance(tree, ast.Name) and tree.id in self._structures:
            return self._structures[tree.id]
        if isinstance(tree, ast.Subscript):
            return self._subscript(tree)
        if isinstance(tree, ast.UnaryOp) and type(tree.op) in _OPERATORS:
            return self._call(_OPERATORS[type(tree.op)], self._value(tree.operand))
        if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
            return self._call(_OPERATORS[type(tree.op)], self._value(tree.left), self._value(tree.right))
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in _OPERATORS:
            left, right = self._value(tree.left), self._value(tree.comparators[0])
            return self._call(_OPERATORS[type(tree.ops[0])], left, right)
        if isinstance(tree, ast.Call) and ast.unparse(tree.func) in _FUNCTIONS and not tree.keywords:
            return self._call(_FUNCTIONS[ast.unparse(tree.func)], *map(self._value, tree.args))
        raise UnreadableGuardError

    def _subscript(self, tree: ast.Subscript) -> Any:
        """``x.size()[1]`` is a size, ``batch['mask']`` a part of an argument."""
        place = self._value(tree.slice)
        source = tree.value
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and source.func.attr == "size":
            leaf = self._value(source.func.value)
            if isinstance(leaf, Node) and isinstance(place, int):
                return self._size(leaf, place)
            raise UnreadableGuardError
        whole = self._value(source)
        if isinstance(whole, Node):
            raise UnreadableGuardError
        return whole[place]

    def _call(self, function: Any, *args: Any) -> Any:
        if not any(isinstance(argument, Node) for argument in args):
            return function(*args)
        key = (function, args, tuple(map(type, args)))  # 1 == 1.0 == True
        if key not in self._calls:
            self._calls[key] = self._graph.call_function(function, args)
        return self._calls[key]


def write_guards(
    graph: Graph,
    names: Sequence[str],
    spec: Any,
    leaves: Sequence[Node],
    examples: Sequence[Any],
    conditions: Sequence[str],
) -> None:
    """Write the checks of all inputs of a program.

    Args:
        graph: It ends with its inputs.
        names: Names of the arguments.
        spec: The structure of ``(args, kwargs)``.
        leaves: The node of each input.
        examples: What the program knows of each: a tensor without values, a number, a string or None.
        conditions: What torch checks, as text.
    """
    args, kwargs = pytree.tree_unflatten(list(leaves), spec)
    guards = Guards(graph, dict(zip(names, (*args, *kwargs.values()), strict=True)))
    for condition in conditions:
        try:
            guards.write(condition)
        except UnreadableGuardError:
            guards.pin(condition, dict(zip(leaves, examples, strict=True)))
    for leaf, example in zip(leaves, examples, strict=True):
        if isinstance(example, torch.Tensor):
            guards.write_shape(leaf, example.shape, leaf.name)
        elif type(example) in (type(None), bool, str, int, float) and not any(
            user.target is require_value for user in leaf.users
        ):
            graph.call_function(require_value, (leaf, example, leaf.name))


def _size_on_export(example: Any, dim: int) -> int | None:
    """Return a size of an example; of a size that stays open, what it was when the program was made."""
    size = example.shape[dim] if isinstance(example, torch.Tensor) else None
    if isinstance(size, torch.SymInt):
        return size.node.hint
    return size


def conditions_of(module: Any) -> tuple[str, ...]:
    """Return the conditions that the ``_guards_fn`` of a program's module checks, as text; none if it has none."""
    forward = getattr(getattr(module, "_guards_fn", None), "forward", None)
    found: list[str] = []
    waiting, seen = [forward], set()
    while waiting:
        function = waiting.pop()
        code = getattr(function, "__code__", None)
        if code is None or id(code) in seen:
            continue
        seen.add(id(code))
        found += [
            const.removeprefix(FAILED)
            for const in code.co_consts
            if isinstance(const, str) and const.startswith(FAILED)
        ]
        waiting += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return tuple(found)
