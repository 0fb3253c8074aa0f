"""One spelling for each operator, so that tables name it once; values, and who sees which change, stay as they were."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxquant.graph.aliases import Roots, changed_argument, may_hold_tensor, plain_form, roots_of
from fxquant.graph.edit import positions, redirect_later_reads, retarget
from fxquant.graph.operators.spelling import Call, canonical_call
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
from fxquant.patterns.shape import SPLITS

ALIASED = "in-place change of an aliased tensor"
STORED = "in-place change of a parameter or buffer"
GIVEN = "in-place change of a view of an input, which the caller sees"
PROMOTED = "in-place operator on operands of different dtypes"
NO_PLAIN_FORM = "in-place operator without an out-of-place form"
SHARED_MODULE = "in-place module that is called at several places"
_REVERSED = slice(None, None, -1)
CHANGED = "{} changes its value later: {}"
READS_CHANGED = "it reads a value that {} changes: {}"


@graph_pass(keeps_values=True)
def normalize(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Rewrite module, function, method and in-place spellings, positional and keyword arguments, to one form.

    An in-place operator becomes the plain one, and whatever read the changed tensor later reads the new value; this
    also holds for inputs of the model, so that a call no longer changes the caller's tensor. Where another name of the
    same memory is read later, the operator stays as it is: it, the values that change under their readers, and those
    readers get a reason (``graph.query.reason_of``) to stay float.
    """
    # Spell each call in one way; what changes a tensor in place is rewritten, or kept with a reason.
    order = positions(gm.graph)
    roots: dict[Node, Roots] = {}
    for node in list(gm.graph.nodes):
        call = canonical_call(node)
        changed = changed_argument(node)
        if changed is not None:
            reason = _why_in_place(node, changed, call, roots, order)
            if reason is None:
                _rewrite_in_place(node, changed, call, roots, order)
            else:
                _keep_in_place(node, changed, reason, roots, order)
        elif call is not None:
            retarget(node, "call_function", call.target, call.args, call.kwargs)
            if call.drops is not None and SAME_WHILE_TRAINING not in node.meta:
                node.meta[REGULARIZER] = call.drops
        elif (name := _keyword_input(node)) is not None:
            others = {keyword: value for keyword, value in node.kwargs.items() if keyword != name}
            retarget(node, "call_module", node.target, (node.kwargs[name],), others)
        roots[node] = roots_of(node, roots)
    # Count elements of tuples from the end where the length is not known.
    for node in list(gm.graph.nodes):
        _take_from_the_end(node)
    return gm


def _take_from_the_end(node: Node) -> None:
    """``x.chunk(2)[::-1][0]`` is ``x.chunk(2)[-1]``, and both lists have one length."""
    if node.target not in (operator.getitem, len) or node.kwargs:
        return
    source: Any = node.args[0]
    if not isinstance(source, Node) or source.target is not operator.getitem or source.args[1] != _REVERSED:
        return
    parts: Any = source.args[0]
    if parts.target not in SPLITS or value_of(parts) is not None:
        return
    if node.target is len:
        node.args = (parts,)
    elif type(node.args[1]) is int:
        node.args = (parts, -1 - node.args[1])
    else:
        return
    if not source.users:
        node.graph.erase_node(source)


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
    if changed.op != "placeholder" and any(_is_memory_of(changed, root) for root in roots[changed]):
        return GIVEN
    for other in _aliases(changed, roots):
        if other is not changed and any(order[user] > order[node] for user in other.users):
            return ALIASED
    if node.op == "call_module":
        calls = [other for other in node.graph.nodes if other.op == "call_module" and other.target == node.target]
        return None if call is not None or len(calls) == 1 else SHARED_MODULE
    if call is None and plain_form(node) is None:
        return NO_PLAIN_FORM
    return None if _keeps_dtype(node, changed) else PROMOTED


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


def _keep_in_place(
    node: Node, changed: Any, reason: str, roots: Mapping[Node, Roots], order: Mapping[Node, int]
) -> None:
    stale = _aliases(changed, roots) if isinstance(changed, Node) else []
    readers = [user for value in stale for user in value.users if order[user] > order[node]]
    node.meta.setdefault(REASON, reason)
    for marked, what in (*((value, CHANGED) for value in stale), *((reader, READS_CHANGED) for reader in readers)):
        if marked.op != "output" and may_hold_tensor(marked):
            marked.meta.setdefault(REASON, what.format(operator_name(node), reason))
