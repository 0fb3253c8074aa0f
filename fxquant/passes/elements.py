"""Which elements of a value are read as integers, and which as real numbers: of a slice, those that it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from fxquant.graph.query import is_shape_query, value_of
from fxquant.patterns.elementwise import ACTIVATION, ELEMENTWISE
from fxquant.patterns.pattern import Match, Output
from fxquant.patterns.shape import DATA_MOVEMENT, NOTHING
from fxquant.patterns.unary import PRELU, RESCALE, UNARY

EACH_ALONE = frozenset(
    pattern.name
    for pattern in (*ELEMENTWISE, *UNARY, *PRELU, *ACTIVATION, *RESCALE, *NOTHING)
    if pattern.output is not Output.ONE_FOR_ALL
)
"""Names of patterns where an element of the result follows from the elements at its place, but for broadcasting."""

MOVED = frozenset(pattern.name for pattern in DATA_MOVEMENT)

Elements = Tensor | None
"""bool, of the shape of a value; None: all of them."""


class ElementsRead:
    """The elements of values that readers need, on the shapes of the example.

    Args:
        found: Node -> the match that holds it.
        takes_integers: Whether a node, the second, takes the integers of another one, the first.
    """

    def __init__(self, found: Mapping[Node, Match], takes_integers: Callable[[Node, Node], bool]) -> None:
        self._found = found
        self._takes_integers = takes_integers
        self._needed: dict[Node, Elements] = {}

    def some_only_as_floats(self, node: Node) -> bool:
        """Whether real numbers are read of elements of a tensor that no integers are needed of."""
        needed = self.as_integers(node)
        if needed is None:
            return False
        read = self._as_floats(node)
        return read is None or bool((read & ~needed).any())

    def is_read_in_part(self, reader: Node, source: Node) -> bool:
        """Whether a reader needs some elements of a tensor alone as integers."""
        return self._behind(reader, source, self.as_integers) is not None

    def as_integers(self, node: Node) -> Elements:
        """The elements that integers are needed of; all where that is not known."""
        if node not in self._needed:
            readers = [reader for reader in readers_of(node) if self._takes_integers(node, reader)]
            self._needed[node] = _union(node, [self._behind(reader, node, self.as_integers) for reader in readers])
        return self._needed[node]

    def _as_floats(self, node: Node) -> Elements:
        """The elements that real numbers are read of, as far as that is known."""
        found: list[Elements] = []
        for reader in readers_of(node):
            if not self._takes_integers(node, reader):
                found.append(self._behind(reader, node, _every_one))
            elif self._is_data_movement(reader) and self._is_followed(reader, node):
                found.append(self._behind(reader, node, self._as_floats))
        return _union(node, found)

    def _is_data_movement(self, reader: Node) -> bool:
        found = self._found.get(reader)
        return found is not None and found.pattern.output is Output.PICKED

    def _is_followed(self, reader: Node, source: Node) -> bool:
        """Whether it is known which elements of a value those come from that a reader of it gives."""
        found = self._found.get(reader)
        if found is None:
            return False
        root = found.nodes[-1]
        if found.pattern.name in MOVED:
            return root.all_input_nodes == [source] and root.op != "call_module" and _shape(source) is not None
        return found.pattern.name in EACH_ALONE and _shape(root) == _shape(source)

    def _behind(self, reader: Node, source: Node, wanted: Callable[[Node], Elements]) -> Elements:
        """The elements of ``source`` that those come from which are ``wanted`` of what reads it."""
        if not self._is_followed(reader, source):
            return None
        root = self._found[reader].nodes[-1]
        return _moved_from(root, source, wanted) if self._found[reader].pattern.name in MOVED else wanted(root)


def readers_of(node: Node) -> list[Node]:
    """What reads the values of a node, not its shape."""
    return [user for user in node.users if not is_shape_query(user)]


def _every_one(node: Node) -> Elements:
    return None


def _moved_from(root: Node, source: Node, wanted: Callable[[Node], Elements]) -> Elements:
    shape = _shape(source) or ()
    several = value_of(root) is None
    if not several and wanted(root) is None and math.prod(_shape(root) or ()) == math.prod(shape):
        return None
    places = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    args, kwargs = map_arg((root.args, root.kwargs), lambda _: places)
    target: Any = root.target if root.op == "call_function" else getattr(places, str(root.target))
    moved = target(*(args if root.op == "call_function" else args[1:]), **kwargs)
    read = torch.zeros(shape, dtype=torch.bool)
    pairs = [(moved[user.args[1]], wanted(user)) for user in readers_of(root)] if several else [(moved, wanted(root))]
    for each, elements in pairs:
        came_from = each.reshape(-1) if elements is None else each[elements]
        read.view(-1)[came_from.long()] = True
    return None if bool(read.all()) else read


def _union(node: Node, parts: list[Elements]) -> Elements:
    shape, known = _shape(node), [part for part in parts if part is not None]
    if shape is None or len(known) < len(parts):
        return None
    union = torch.zeros(shape, dtype=torch.bool)
    for part in known:
        union |= part
    return None if bool(union.all()) else union


def _shape(node: Node) -> tuple[int, ...] | None:
    info = value_of(node)
    return None if info is None else info.shape
