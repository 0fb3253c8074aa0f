"""One spelling for each operator, so that tables name it once; values, and who sees which change, stay as they were."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from types import NoneType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxquant.graph.aliases import Roots, changed_argument, changed_values, may_hold_tensor, plain_form, roots_of
from fxquant.graph.edit import erase_unread, positions, redirect_later_reads, retarget
from fxquant.graph.operators.spelling import Call, canonical_call, is_dtype
from fxquant.graph.query import (
    INPLACE,
    REASON,
    REGULARIZER,
    SAME_WHILE_TRAINING,
    TensorInfo,
    canonical_type,
    flat_arguments,
    has_hooks,
    module_of,
    operator_name,
    value_of,
)
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.item_assignment import ItemAssignments, as_slice, items_of, slices_of, spell_assignments
from fxquant.patterns.shape import SPLITS

ALIASED = "in-place change of an aliased tensor"
STORED = "in-place change of a parameter or buffer"
GIVEN = "in-place change of a view of an input, which the caller sees"
PROMOTED = "in-place operator on operands of different dtypes"
OVERLAP = "in-place change of what it reads in another place"
NO_PLAIN_FORM = "in-place operator without an out-of-place form"
SHARED_MODULE = "in-place module that is called at several places"
_REVERSED = slice(None, None, -1)
CHANGED = "{} changes its value later: {}"
READS_CHANGED = "it reads a value that {} changes: {}"

_PRODUCTS = frozenset(("addmm", "addmv", "addr", "addbmm", "baddbmm"))
"""Operators whose every result hangs on many values of an argument."""

Place = tuple[Node, Any]
"""A tensor, or a tuple of some, and the key of a part of it; of all of it ``()``."""


@graph_pass(keeps_values=True)
def normalize(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Rewrite module, function, method and in-place spellings, positional and keyword arguments, to one form.

    An in-place operator becomes the plain one, and whatever read the changed tensor later reads the new value; this
    also holds for inputs of the model, so that a call no longer changes the caller's tensor. ``y[:, :3] = v`` becomes
    a join of ``v`` and of what stays of ``y``. Where another name of the same memory is read later, the operator stays
    as it is: it, the values that change under their readers, and those readers get a reason
    (``graph.query.reason_of``) to stay float.
    """
    # Spell changes of items as assignments.
    spell_assignments(gm)
    for node in gm.graph.nodes:
        _spell_attributes_and_types(node)
    # Spell each call in one way; what changes a tensor in place is rewritten, or kept with a reason.
    order = positions(gm.graph)
    roots: dict[Node, Roots] = {}
    in_place: dict[Node, str] = {}
    assignments, joins = ItemAssignments(gm), list[Node]()
    for node in list(gm.graph.nodes):
        call = canonical_call(node)
        changed = changed_argument(node)
        if changed is not None:
            reason = _why_in_place(node, changed, call, roots, order)
            if reason is None and node.target is operator.setitem:
                new, made = assignments.write(node)
                joins += made
                order.update(dict.fromkeys(made, order[node]))
                for each in made:
                    roots[each] = roots_of(each, roots)
                redirect_later_reads(changed, new, order)
                gm.graph.erase_node(node)
                continue
            if reason is None:
                _rewrite_in_place(node, changed, call, roots, order)
            else:
                node.meta.setdefault(REASON, reason)
                in_place[node] = reason
                assignments.forget_pieces()
        elif call is not None:
            retarget(node, "call_function", call.target, call.args, call.kwargs)
            if call.drops is not None and SAME_WHILE_TRAINING not in node.meta:
                node.meta[REGULARIZER] = call.drops
        elif (name := _keyword_input(node)) is not None:
            others = {keyword: value for keyword, value in node.kwargs.items() if keyword != name}
            retarget(node, "call_module", node.target, (node.kwargs[name],), others)
        roots[node] = roots_of(node, roots)
    # Drop what no join reads any more: a tensor that was filled, say.
    erase_unread(gm.graph, joins)
    # Take elements of slices of tuples from the whole tuples.
    for node in list(gm.graph.nodes):
        _take_from_the_whole(node)
    # Mark what changes under its readers, and these: among them joins that assignments have become.
    _mark_changes(gm, in_place)
    return gm


def _take_from_the_whole(node: Node) -> None:
    """``x.chunk(3)[1:][0]`` is ``x.chunk(3)[1]``, of slices of slices too; and a list turned around has its length."""
    if node.target not in (operator.getitem, len) or node.kwargs or not isinstance(node.args[0], Node):
        return
    index: Any = node.args[1] if node.target is operator.getitem else None
    parts: Any = node.args[0]
    while parts.target is operator.getitem and isinstance(parts.args[1], slice) and isinstance(parts.args[0], Node):
        if node.target is len and parts.args[1] != _REVERSED:
            return
        if node.target is operator.getitem and (index := position_in_whole(parts.args[1], index)) is None:
            return
        parts = parts.args[0]
    source = node.args[0]
    if parts is source or parts.target not in SPLITS or value_of(parts) is not None:
        return
    node.args = (parts,) if node.target is len else (parts, index)
    while source is not parts and not source.users:
        unread, source = source, source.args[0]  # type: ignore[assignment]
        node.graph.erase_node(unread)


def position_in_whole(part: slice, index: object) -> int | None:
    """Return the index, in a list, of what a slice of it has at ``index``; None where that depends on the length.

    A list that is too short for the index is not noticed where the slice ends before it.
    """
    start, stop, step = part.start, part.stop, 1 if part.step is None else part.step
    if any(type(number) is not int for number in (index, step, start or 0, stop or 0)):
        return None
    place: int = index  # type: ignore[assignment]
    if part == _REVERSED:
        return -1 - place
    if step > 0 and place >= 0:
        found = (start or 0) + place * step
        if (start or 0) < 0:  # from the end: up to the stop, if that counts from the end too, or to the last
            return found if found < (stop or 0) <= 0 and stop != 0 else None
        return found if stop is None or stop < 0 or found < stop else None
    if step == 1 and (stop is None or stop < 0):  # from the end
        found = place + (stop or 0)
        return found if start is None or start >= 0 or found >= start else None
    return -1 + place * step if place >= 0 and start is stop is None else None  # every so many, from the last


def _spell_attributes_and_types(node: Node) -> None:
    """``x.data`` is ``x.detach()``, and ``x.type(torch.float32)``, or that of another, is ``x.to(torch.float32)``."""
    if not node.args or not isinstance(node.args[0], Node) or value_of(node.args[0]) is None:
        return
    if node.target is getattr and node.args[1:] == ("data",):
        retarget(node, "call_function", torch.detach, node.args[:1])
    elif node.op == "call_method" and node.target == "type" and len(node.args) == 2 and is_dtype(node.args[1]):
        retarget(node, "call_method", "to", node.args, node.kwargs)


def _keyword_input(node: Node) -> str | None:
    """``conv(input=x)``: of a torch module that stays one, the name of a first argument that needs none."""
    module = module_of(node)
    if module is None or node.args or not node.kwargs or has_hooks(module):
        return None
    torch_class = canonical_type(module)
    first = None if torch_class is None else list(inspect.signature(torch_class.forward).parameters)[1]
    return first if first in node.kwargs else None


def _why_in_place(
    node: Node, changed: Any, call: Call | None, roots: Mapping[Node, Roots], order: Mapping[Node, int]
) -> str | None:
    """Why ``node`` has to stay in place, or None."""
    if not isinstance(changed, Node) or node.kwargs.get("out") is not None:
        return NO_PLAIN_FORM
    if any(isinstance(root, tuple) for root in roots[changed]):
        return STORED
    is_assignment = node.target is operator.setitem
    if _reads_what_it_writes(node, changed, roots):
        return OVERLAP
    if (changed.op != "placeholder" or is_assignment) and any(_is_memory_of(changed, root) for root in roots[changed]):
        return GIVEN
    assignment = _assignment_of(node, order)
    written_back = (
        assignment is not None
        and _why_in_place(assignment, assignment.args[0], canonical_call(assignment), roots, order) is None
    )
    for other in _aliases(changed, roots):
        if other is not changed and any(order[user] > order[node] for user in other.users) and not written_back:
            return ALIASED
    if is_assignment and slices_of(node) is not None:
        return None if _keeps_dtype(node, changed) else PROMOTED
    if node.op == "call_module":
        calls = [other for other in node.graph.nodes if other.op == "call_module" and other.target == node.target]
        return None if call is not None or len(calls) == 1 else SHARED_MODULE
    if call is None and plain_form(node) is None:
        return NO_PLAIN_FORM
    return None if _keeps_dtype(node, changed) else PROMOTED


def _assignment_of(node: Node, order: Mapping[Node, int]) -> Node | None:
    """Return the next operator if it assigns the result to the items that were changed: ``y[:, :3] += v``."""
    view: Any = node.args[0] if node.args else None
    user = next(iter(node.users), None)
    if user is None or user.target is not operator.setitem or len(node.users) > 1 or order[user] != order[node] + 1:
        return None
    if not isinstance(view, Node) or view.target is not operator.getitem or list(view.users) != [node]:
        return None
    return user if user.args == (view.args[0], view.args[1], node) else None


def _reads_what_it_writes(node: Node, changed: Node, roots: Mapping[Node, Roots]) -> bool:
    """``y[:, 1:] += y[:, :-1]``: what is read may have changed already, in the order in which torch takes the values.

    Reading the very place that is written is safe, and so is a place that has nothing in common with it.
    """
    others = [node for node in node.all_input_nodes if node is not changed and _may_be_view(node, changed, roots)]
    if operator_name(node).strip("_") in _PRODUCTS:
        return bool(others) or sum(each is changed for each in flat_arguments(node)) > 1
    written = (changed, node.args[1]) if node.target is operator.setitem else _place_of(changed)
    return not all(_are_apart_or_equal(written, _place_of(other)) for other in others)


def _may_be_view(node: Node, of: Node, roots: Mapping[Node, Roots]) -> bool:
    """Tell whether a value may lie in the memory of another one: a view has its dtype."""
    own, other = value_of(node), value_of(of)
    is_alike = own is None or other is None or own.dtype == other.dtype
    return is_alike and bool(roots.get(node, Roots()) & roots[of])


def _place_of(node: Node) -> Place:
    """Return a value and what is taken of it: of ``y[:, 1:]`` the value ``y``."""
    return (node.args[0], node.args[1]) if node.target is operator.getitem else (node, ())  # type: ignore[return-value]


def _are_apart_or_equal(one: Place, two: Place) -> bool:
    """Tell whether two parts are the same, or share nothing; False where that is not seen."""
    (source, key), (other, other_key) = one, two
    if source is not other:
        return False
    if key == other_key:
        return True
    info = value_of(source)
    if info is None or not info.has_shape:  # parts of what chunk or split gave
        return type(key) is int and type(other_key) is int
    items, other_items = items_of(key, len(info.shape)), items_of(other_key, len(info.shape))
    if items is None or other_items is None:
        return False
    indices = zip(items, other_items, info.shape, strict=True)
    return any(_indices(a, size).isdisjoint(_indices(b, size)) for a, b, size in indices)


def _indices(item: int | slice, size: int) -> set[int]:
    """Return which of ``size`` values a number or a slice takes; all of them where it is not a number that says so."""
    part = as_slice(item)
    known = all(type(number) in (int, NoneType) for number in (part.start, part.stop, part.step))
    return {*range(size)[part]} if known else {*range(size)}


def _is_memory_of(changed: Node, root: Any) -> bool:
    """Tell whether ``changed`` is a view of an input; of one of another dtype it is a copy."""
    if not isinstance(root, Node) or root.op != "placeholder":
        return False
    own, given = value_of(changed), value_of(root)
    return own is None or given is None or own.dtype == given.dtype


def _aliases(node: Node, roots: Mapping[Node, Roots]) -> list[Node]:
    return [other for other, memory in roots.items() if memory & roots[node]]


def _keeps_dtype(node: Node, changed: Node) -> bool:
    """Tell whether the out-of-place operator gives the dtype of the tensor that the in-place one writes to."""
    own = value_of(changed)
    if own is None:
        return False
    for argument in flat_arguments(node):
        other: Any = value_of(argument) if isinstance(argument, Node) else argument
        if isinstance(other, TensorInfo):
            if other.dtype != own.dtype and torch.promote_types(other.dtype, own.dtype) != own.dtype:
                return False
        elif isinstance(other, (float, complex)) and not own.dtype.is_floating_point:
            return False
    return True


def _rewrite_in_place(
    node: Node, changed: Node, call: Call | None, roots: Mapping[Node, Roots], order: Mapping[Node, int]
) -> None:
    if call is not None:
        retarget(node, "call_function", call.target, call.args, call.kwargs)
    elif node.op == "call_module":
        module: Any = module_of(node)
        module.inplace = False  # the graph's own copy, called here only
    else:
        plain = plain_form(node)
        assert plain is not None  # _why_in_place saw to it
        kwargs = {name: value for name, value in node.kwargs.items() if name != "inplace"}
        retarget(node, *plain, node.args, kwargs)
    redirect_later_reads(changed, node, order)
    if len(changed.users) == 1 and all(root.op not in ("placeholder", "get_attr") for root in roots[changed]):
        node.meta[INPLACE] = True


def _mark_changes(gm: GraphModule, in_place: Mapping[Node, str]) -> None:
    """Give the values that operators change in place, and what reads them after it, a reason to stay float."""
    if not in_place:
        return
    order, roots = positions(gm.graph), dict[Node, Roots]()
    for node in gm.graph.nodes:
        roots[node] = roots_of(node, roots)
    for node, reason in in_place.items():
        aliases = dict.fromkeys(value for changed in changed_values(node) for value in _aliases(changed, roots))
        stale = [value for value in aliases if order[value] < order[node]]
        readers = [user for value in stale for user in value.users if order[user] > order[node]]
        for marked, what in (*((value, CHANGED) for value in stale), *((reader, READS_CHANGED) for reader in readers)):
            if marked.op != "output" and may_hold_tensor(marked):
                marked.meta.setdefault(REASON, what.format(operator_name(node), reason))
