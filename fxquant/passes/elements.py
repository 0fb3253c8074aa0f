"""Tells the elements of a value that are read as integers from those read as floats: a slice reads a part of them."""

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
"""bool, of a shape that broadcasts to that of a value; None: all of them."""

MAX_INDEXED = 1 << 22
"""Elements of the largest value whose elements are followed one by one: of a larger one, views alone are followed."""


class ElementsRead:
    """The elements of values that readers need, on the shapes of the example.

    Args:
        match_of: Node -> the match that holds it.
        takes_integers: Whether a node, the second, takes the integers of another one, the first.
    """

    def __init__(self, match_of: Mapping[Node, Match], takes_integers: Callable[[Node, Node], bool]) -> None:
        self._match_of = match_of
        self._takes_integers = takes_integers
        self._needed: dict[Node, Elements] = {}

    def some_only_as_floats(self, node: Node) -> bool:
        """Tell whether some elements of a tensor are read as floats and never needed as integers."""
        needed = self.as_integers(node)
        if needed is None:
            return False
        read = self._as_floats(node)
        return read is None or bool((read & ~needed).any())

    def is_read_in_part(self, reader: Node, source: Node) -> bool:
        """Tell whether a reader needs only a part of the elements of a tensor as integers."""
        return self._behind(reader, source, self.as_integers) is not None

    def as_integers(self, node: Node) -> Elements:
        """Return the elements needed as integers: all of them where a reader cannot be followed."""
        if node not in self._needed:
            readers = [reader for reader in readers_of(node) if self._takes_integers(node, reader)]
            self._needed[node] = _union(node, [self._behind(reader, node, self.as_integers) for reader in readers])
        return self._needed[node]

    def _as_floats(self, node: Node) -> Elements:
        """Return the elements read as floats: all of them where a reader cannot be followed."""
        read: list[Elements] = []
        for reader in readers_of(node):
            if not self._takes_integers(node, reader):
                read.append(self._behind(reader, node, _every_one))
            elif self._is_data_movement(reader) and self._is_followed(reader, node):
                read.append(self._behind(reader, node, self._as_floats))
        return _union(node, read)

    def _is_data_movement(self, reader: Node) -> bool:
        match = self._match_of.get(reader)
        return match is not None and match.pattern.output is Output.PICKED

    def _is_followed(self, reader: Node, source: Node) -> bool:
        """Tell whether the elements of a reader's result can be traced back to those of its source."""
        match = self._match_of.get(reader)
        if match is None:
            return False
        root = match.nodes[-1]
        if match.pattern.name in MOVED:
            return root.all_input_nodes == [source] and root.op != "call_module" and _shape(source) is not None
        return match.pattern.name in EACH_ALONE and _shape(root) == _shape(source)

    def _behind(self, reader: Node, source: Node, wanted: Callable[[Node], Elements]) -> Elements:
        """Return the elements of ``source`` that end up in the ``wanted`` elements of its reader."""
        if not self._is_followed(reader, source):
            return None
        root = self._match_of[reader].nodes[-1]
        return _moved_from(root, source, wanted) if self._match_of[reader].pattern.name in MOVED else wanted(root)


def readers_of(node: Node) -> list[Node]:
    """Return the users of a node that read its values, not only its shape."""
    return [user for user in node.users if not is_shape_query(user)]


def _every_one(node: Node) -> Elements:
    return None


def _moved_from(root: Node, source: Node, wanted: Callable[[Node], Elements]) -> Elements:
    info = value_of(source)
    if info is not None and not info.has_shape:
        return None
    shape = _shape(source) or ()
    several = value_of(root) is None
    if not several and wanted(root) is None and math.prod(_shape(root) or ()) == math.prod(shape):
        return None
    read = _read_through_strides(root, shape, wanted)
    if read is None and math.prod(shape) <= MAX_INDEXED:
        read = _read_by_index(root, shape, wanted)
    return None if read is None or bool(read.all()) else read


def _read_through_strides(root: Node, shape: tuple[int, ...], wanted: Callable[[Node], Elements]) -> Elements:
    """Return what a view reads, from its strides alone; None where the result is no view or mixes dimensions."""
    source = torch.empty(shape, device="meta")
    try:
        results = _results(root, source, wanted)
    except (NotImplementedError, RuntimeError):  # the operator has no implementation without data
        return None
    read = torch.zeros((1,) * len(shape), dtype=torch.bool)
    for view, elements in results:
        part = _viewed(source, view, elements)
        if part is None:
            return None
        read = read | part
    return read


def _viewed(source: Tensor, view: Tensor, elements: Elements) -> Elements:
    """Return which elements of a contiguous source a view shows, or None where dimensions are mixed."""
    if 0 in (*source.shape, *view.shape) or (view is not source and view._base is not source):
        return None
    if elements is None:
        elements = torch.ones((1,) * view.dim(), dtype=torch.bool)
    # an expanded dimension repeats one place: it is read where any of the repetitions is
    dims = [dim for dim in range(view.dim()) if view.size(dim) > 1 and view.stride(dim) > 0]
    for dim in set(range(view.dim())) - set(dims):
        elements = elements.any(dim, keepdim=True)
    offset, taken = int(view.storage_offset()), dict[int, int]()
    places: list[Tensor] = []
    for dim, size in enumerate(source.shape):
        stride = source.stride(dim)
        start, offset = divmod(offset, stride)
        # the dimension of the view that steps through this one, if any, and does not leave it
        through = [k for k in dims if view.stride(k) % stride == 0 and start + _last(view, k) // stride < size]
        through = [k for k in through if k not in taken][:1]
        taken.update(dict.fromkeys(through, dim))
        steps = [(view.size(k), view.stride(k) // stride) for k in through] or [(1, 1)]
        places.append(start + steps[0][1] * torch.arange(steps[0][0]))
    if len(taken) < len(dims):
        return None
    order = [*taken, *(dim for dim in range(view.dim()) if dim not in taken)]
    part = elements.permute(order).reshape([elements.size(dim) for dim in taken])
    of_source = {dim: k for k, dim in taken.items()}
    part = part.reshape([elements.size(of_source[dim]) if dim in of_source else 1 for dim in range(source.dim())])
    for dim, (size, at) in enumerate(zip(source.shape, places, strict=True)):
        if part.size(dim) == 1 and len(at) == size:
            continue  # every place of this dimension alike
        lengths = [size if other == dim else part.size(other) for other in range(part.dim())]
        spread = torch.zeros(lengths, dtype=torch.bool)
        part = spread.index_copy(dim, at, part.expand([len(at) if o == dim else -1 for o in range(part.dim())]))
    return part


def _last(view: Tensor, dim: int) -> int:
    return (view.size(dim) - 1) * view.stride(dim)


def _read_by_index(root: Node, shape: tuple[int, ...], wanted: Callable[[Node], Elements]) -> Tensor:
    """Return what data movement reads, by moving the index of every element."""
    places = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)  # exact up to 2^24
    read = torch.zeros(shape, dtype=torch.bool)
    for moved, elements in _results(root, places, wanted):
        came_from = moved.reshape(-1) if elements is None else moved[elements.expand(moved.shape)]
        read.view(-1)[came_from.long()] = True
    return read


def _results(root: Node, source: Tensor, wanted: Callable[[Node], Elements]) -> list[tuple[Tensor, Elements]]:
    """Return each result of data movement on a stand-in for its source, with the elements needed of it."""
    args, kwargs = map_arg((root.args, root.kwargs), lambda _: source)
    target: Any = root.target if root.op == "call_function" else getattr(source, str(root.target))
    moved = target(*(args if root.op == "call_function" else args[1:]), **kwargs)
    if value_of(root) is None:
        return [(moved[user.args[1]], wanted(user)) for user in readers_of(root)]
    return [(moved, wanted(root))]


def _union(node: Node, parts: list[Elements]) -> Elements:
    shape, known = _shape(node), [part for part in parts if part is not None]
    if shape is None or len(known) < len(parts):
        return None
    union = torch.zeros((1,) * len(shape), dtype=torch.bool)
    for part in known:
        union = union | part
    return None if bool(union.all()) else union


def _shape(node: Node) -> tuple[int, ...] | None:
    info = value_of(node)
    return None if info is None else info.shape
