"""Writes item assignment, ``y[:, :3] = v``, out of place: as a join of ``v`` and of what stays of ``y``."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxquant.graph.aliases import changed_argument, plain_form
from fxquant.graph.edit import Emitter
from fxquant.graph.operators.spelling import canonical_call
from fxquant.graph.query import VALUE, TensorInfo, value_of

Slices = dict[int, slice]
"""Dimension -> the part of it that is assigned to; dimensions that are assigned to as a whole are left out."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a join along a dimension."""

    start: int
    stop: int | None
    """None: to the end."""
    value: Node


@dataclass(slots=True)
class ItemAssignments:
    """The assignments of a graph that were written as joins so far.

    Where one tensor is written piece by piece, each join is made of all pieces: so nothing is left of a ``torch.empty``
    that was filled, whose values would spoil the ranges.
    """

    gm: GraphModule
    _pieces: dict[Node, tuple[int, list[Piece]]] = field(default_factory=dict)
    """A join -> its dimension and pieces, where numbers from the beginning say where they lie."""
    _turns: dict[Node, tuple[int, list[Node]]] = field(default_factory=dict)
    """A tensor whose elements are those of several in turn -> the dimension, and these with one of size 1 behind it."""

    def write(self, node: Node) -> tuple[Node, list[Node]]:
        """Make the nodes that compute what ``node``, of which ``slices_of`` knows the key, leaves in its tensor.

        Returns:
            The last of them, and all, in their order.
        """
        before = {*self.gm.graph.nodes}
        emit = Emitter(self.gm, node)
        source, value = self._value(emit, node)
        slices = slices_of(node)
        assert slices is not None
        strided = next((dim for dim, part in slices.items() if _step(part) > 1), None)
        if strided is None:
            new = self._replaced(emit, source, sorted(slices.items()), value)
        else:
            new = self._in_turn(emit, source, strided, slices[strided], value)
        return new, [each for each in self.gm.graph.nodes if each not in before]

    def forget_pieces(self) -> None:
        """Make later joins of what tensors hold then: an operator that stays in place may have changed the pieces."""
        self._pieces.clear()
        self._turns.clear()

    def _value(self, emit: Emitter, node: Node) -> tuple[Node, Node]:
        """Return the tensor that is written to, and what is written, with all of its dimensions."""
        source, key, value = node.args
        region = _region(node)
        dtype = value_of(source).dtype  # type: ignore[union-attr, arg-type]
        if isinstance(value, Node) and value_of(value).dtype != dtype:  # type: ignore[union-attr]
            value = emit.method("to", value, dtype)
        if not isinstance(value, Node):
            value = emit.function(torch.full_like, emit.function(operator.getitem, source, key), value)
        elif value_of(value).shape != region or not _depends_on_input(value):  # type: ignore[union-attr]
            value = emit.method("expand_as", value, emit.function(operator.getitem, source, key))
        for dim, item in enumerate(items_of(key, len(value_of(source).shape))):  # type: ignore[union-attr, arg-type]
            if isinstance(item, int):
                value = emit.function(torch.unsqueeze, value, dim)
        return source, value  # type: ignore[return-value]

    def _replaced(self, emit: Emitter, source: Node, slices: Sequence[tuple[int, slice]], value: Node) -> Node:
        if not slices:
            return emit.function(torch.clone, value)  # a later change of the tensor is none of the value
        (dim, part), *inner = slices
        start, stop = part.start or None, part.stop
        if inner:
            value = self._replaced(emit, _cut(emit, source, dim, start, stop), inner, value)
        if (start or 0) < 0 or (stop or 0) < 0:
            rest = source if start is None or start < 0 or stop is None else _cut(emit, source, dim, start, None)
            head = [] if start is None else [_cut(emit, source, dim, None, start)]
            tail = [] if stop is None else [_cut(emit, rest, dim, stop, None)]
            return emit.function(torch.cat, (*head, value, *tail), dim)
        pieces = [
            *(self._parts(emit, source, dim, 0, start) if start is not None else ()),
            Piece(start or 0, stop, value),
            *(self._parts(emit, source, dim, stop, None) if stop is not None else ()),
        ]
        new = emit.function(torch.cat, tuple(piece.value for piece in pieces), dim) if len(pieces) > 1 else value
        self._pieces[new] = dim, pieces
        return new

    def _parts(self, emit: Emitter, source: Node, dim: int, start: int, stop: int | None) -> Iterator[Piece]:
        """Yield the pieces of a part of a tensor: of a join those that it was made of."""
        along, pieces = self._pieces.get(source, (dim, [Piece(0, None, source)]))
        for piece in pieces if along == dim else [Piece(0, None, source)]:
            low = max(start, piece.start)
            ends = [end for end in (stop, piece.stop) if end is not None]
            high = min(ends) if ends else None
            if high is None or low < high:
                end = None if high == piece.stop or high is None else high - piece.start
                begin = low - piece.start or None
                whole = begin is end is None
                yield Piece(low, high, piece.value if whole else _cut(emit, piece.value, dim, begin, end))

    def _in_turn(self, emit: Emitter, source: Node, dim: int, part: slice, value: Node) -> Node:
        """Write ``y[start::step] = v``: the elements are those of ``step`` tensors in turn, one of which is ``v``."""
        start, step = part.start or 0, part.step
        along, turns = self._turns.get(source, (dim, []))
        if along != dim or len(turns) != step:
            rows = emit.method("unflatten", source, dim, (-1, step))
            turns = [_cut(emit, rows, dim + 1, number, number + 1) for number in range(step)]
        turns = [emit.function(torch.unsqueeze, value, dim + 1) if n == start else row for n, row in enumerate(turns)]
        new = emit.function(torch.flatten, emit.function(torch.cat, tuple(turns), dim + 1), dim, dim + 1)
        self._turns[new] = dim, turns
        return new


def spell_assignments(gm: GraphModule) -> None:
    """Write, in place, changes of items as assignments: ``y[:, :3].copy_(v)`` and ``y[:, :3].add_(v)``.

    The second becomes ``y[:, :3] = y[:, :3].add_(v)``, as ``y[:, :3] += v`` is traced. torch.export spells all so.
    """
    for node in reversed(list(gm.graph.nodes)):  # copies before what they copy
        if (mask := _mask_of(node)) is not None:
            _fill_by_mask(gm, node, mask)
            continue
        view: Any = node.args[0] if node.args else None
        if not _is_item(view) or changed_argument(node) is not view or list(view.users) != [node]:
            continue
        source, key = view.args
        if source.op in ("placeholder", "get_attr"):
            continue
        given: Any = node.args[1] if len(node.args) == 2 and not node.kwargs else None
        if _is_item(given_view := _changed_view(given)) and given_view.args == view.args and not node.users:
            gm.graph.erase_node(node)  # torch.export copies the view that was changed to itself
            gm.graph.erase_node(view)
            continue
        if node.users:
            continue
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if name in ("copy_", "fill_") and given is not None:
            value = given
        elif name == "zero_":
            value = 0
        elif canonical_call(node) is not None or plain_form(node) is not None:
            value = node
        else:
            continue
        with gm.graph.inserting_after(node):
            assignment = gm.graph.call_function(operator.setitem, (source, key, value))
        assignment.meta = {key: value for key, value in node.meta.items() if key != VALUE}
        assignment.meta[VALUE] = type(None)
        if slices_of(assignment) is None:
            gm.graph.erase_node(assignment)
        elif value is not node:
            gm.graph.erase_node(node)
            gm.graph.erase_node(view)


def _mask_of(node: Node) -> Node | None:
    """Return the mask of ``y[mask] = number`` and of ``y.index_put_((mask,), number)``; None of other nodes.

    A tensor without dimensions is a number, too. ``masked_fill_`` then writes the same.
    """
    if node.kwargs or len(node.args) != 3:
        return None
    source, key, value = node.args
    if node.target in ("index_put_", torch.index_put_) and isinstance(key, (tuple, list)) and len(key) == 1:
        key = key[0]
    elif node.target is not operator.setitem:
        return None
    if not isinstance(source, Node) or not isinstance(key, Node) or source.op in ("placeholder", "get_attr"):
        return None
    info, mask = value_of(source), value_of(key)
    if not all(isinstance(each, TensorInfo) and each.has_shape for each in (info, mask)):
        return None
    assert info is not None
    assert mask is not None
    if mask.dtype != torch.bool or mask.shape != info.shape[: len(mask.shape)] or not mask.shape:
        return None
    if isinstance(value, Node):
        given = value_of(value)
        is_number = isinstance(given, TensorInfo) and given.shape == () and given.dtype == info.dtype
    else:
        is_number = type(value) in (int, float, bool) and info.dtype.is_floating_point
    return key if is_number else None


def _fill_by_mask(gm: GraphModule, node: Node, mask: Node) -> None:
    """Write an assignment by a mask as ``masked_fill_``: its mask broadcasts from the end, not from the begin."""
    source, _, value = node.args
    emit = Emitter(gm, node)
    missing = len(value_of(source).shape) - len(value_of(mask).shape)  # type: ignore[union-attr, arg-type]
    for _ in range(missing):
        mask = emit.function(torch.unsqueeze, mask, -1)
    with gm.graph.inserting_before(node):
        filled = gm.graph.call_method("masked_fill_", (source, mask, value))
    filled.meta = {**node.meta, VALUE: value_of(source)}  # type: ignore[arg-type]
    node.replace_all_uses_with(filled)
    gm.graph.erase_node(node)


def _is_item(node: Any) -> bool:
    return isinstance(node, Node) and node.target is operator.getitem and isinstance(node.args[0], Node)


def _changed_view(node: Any) -> Any:
    """Return the first argument of an operator that changes it in place; None of others."""
    return changed_argument(node) if isinstance(node, Node) else None


def slices_of(node: Node) -> Slices | None:
    """Return what an item assignment writes to, where it can be written as a join; else None.

    Keys of numbers and slices can: ``y[:, 0]``, ``y[..., 1:-1, 1:-1]``, and ``y[:, 1::2]`` of the channels of images,
    whose number is the same in all calls: a join cannot take turns where a size is no multiple of the step. Sizes must
    be known, and the tensor must hold floats.
    """
    if len(node.args) != 3 or node.kwargs or not isinstance(node.args[0], Node):
        return None
    source, key, value = node.args
    info, given = value_of(source), value_of(value) if isinstance(value, Node) else None  # type: ignore[arg-type]
    if info is None or not info.has_shape or not info.dtype.is_floating_point:
        return None
    items = items_of(key, len(info.shape))
    if items is None:
        return None
    parts = [as_slice(item) for item in items]
    if not all(_is_plain(part, size) for part, size in zip(parts, info.shape, strict=True)):
        return None
    if not _fits(given if isinstance(value, Node) else value, info, node):
        return None
    slices: Slices = {}
    for dim, part in enumerate(parts):
        if _step(part) > 1 and (dim != 1 or len(info.shape) < 4):
            return None
        if part.start or part.stop is not None or _step(part) > 1:
            slices[dim] = part
    return slices if len(slices) == 1 or all(_step(part) == 1 for part in slices.values()) else None


def items_of(key: Any, dims: int) -> list[int | slice] | None:
    """Return a number or a slice for each dimension; None where the key has others."""
    given = list(key) if isinstance(key, tuple) else [key]
    if any(item is not ... and type(item) not in (int, slice) for item in given):
        return None
    whole = [slice(None)] * (dims - sum(item is not ... for item in given))
    at = next((index for index, item in enumerate(given) if item is ...), len(given))
    items = [*given[:at], *whole, *given[at + 1 :]]
    return items if len(items) == dims else None


def as_slice(item: int | slice) -> slice:
    """Return the slice that takes what a number or a slice takes."""
    return slice(item, item + 1 or None) if isinstance(item, int) else item


def _is_plain(part: slice, size: int) -> bool:
    """Tell whether a join can replace this part of a dimension, whatever its size is in another call."""
    if any(type(number) is not int for number in (part.start or 0, part.stop or 0, part.step or 1)):
        return False
    start, stop, step = part.start or 0, part.stop, _step(part)
    if step < 1 or stop == 0 or not range(*part.indices(size)):
        return False
    if step > 1:
        return 0 <= start < step and stop is None and size % step == 0
    if stop is None or (start >= 0 > stop):
        return True
    return (start < 0) == (stop < 0) and start < stop


def _fits(value: Any, info: TensorInfo, node: Node) -> bool:
    """Tell whether what is assigned is a number, or a tensor that can be expanded."""
    if isinstance(value, (int, float)):
        return True
    region = _region(node)
    if not isinstance(value, TensorInfo) or not value.has_shape or value.device != info.device:
        return False
    lengths = zip(value.shape[::-1], region[::-1], strict=False)
    return len(value.shape) <= len(region) and all(own in (1, wanted) for own, wanted in lengths)


def _region(node: Node) -> tuple[int, ...]:
    source, key, _ = node.args
    return tuple(torch.empty(value_of(source).shape, device="meta")[key].shape)  # type: ignore[union-attr, arg-type, index]


def _step(part: slice) -> int:
    return 1 if part.step is None else part.step


def _cut(emit: Emitter, source: Node, dim: int, start: int | None, stop: int | None) -> Node:
    return emit.function(operator.getitem, source, (*[slice(None)] * dim, slice(start, stop)))


def _depends_on_input(node: Node) -> bool:
    """Tell whether a value follows from an input of the model, and so has its batch size."""
    seen, left = set[Node](), [node]
    while left:
        if (each := left.pop()).op == "placeholder":
            return True
        if each not in seen:
            seen.add(each)
            left += each.all_input_nodes
    return False
