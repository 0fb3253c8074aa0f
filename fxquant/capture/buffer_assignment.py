"""What a forward keeps from call to call: buffers that it assigns to."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fxquant.graph.query import BY_REQUEST, REASON, VALUE

_OPERATORS = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift"
IN_PLACE = tuple(getattr(operator, f"i{name}") for name in _OPERATORS.split())

BUFFER_STATE = "it computes what a buffer holds in the next call"


def assign_buffer(buffer: Tensor, value: Tensor) -> None:
    """``self.buffer = value``, in a graph: the buffer holds ``value`` from now on, whatever its shape and dtype."""
    with torch.no_grad():
        if buffer.shape == value.shape and buffer.dtype == value.dtype:
            buffer.copy_(value)
        else:
            buffer.data = value.detach().clone()


def changes_in_place(value: Node, path: str) -> bool:
    """Whether ``value`` is the buffer ``path`` itself, changed in place: ``self.count += 1`` assigns too, in vain."""
    node: Any = value
    while isinstance(node, Node) and (node.target in IN_PLACE or (node.op == "call_method" and _ends_in_place(node))):
        node = node.args[0]
    return isinstance(node, Node) and node.op == "get_attr" and node.target == path


def _ends_in_place(node: Node) -> bool:
    return str(node.target).endswith("_") and not str(node.target).endswith("__")


def store_at_the_end(graph: Graph, path: str, value: Node) -> None:
    """Let a graph assign ``value`` to the buffer ``path`` when all else is done.

    Whatever read the buffer before the assignment keeps reading a copy of what it was. What would round the state anew
    in each call has a reason to stay float: errors would add up, and small steps would be lost.
    """
    olds = []
    for read in [node for node in graph.nodes if node.op == "get_attr" and node.target == path]:
        with graph.inserting_after(read):
            old = graph.call_method("clone", (read,))
        read.replace_all_uses_with(old, delete_user_cb=lambda user, old=old: user is not old, propagate_meta=False)
        old.meta = dict(read.meta)
        olds.append(old)
    before = _reached((value,), lambda node: node.all_input_nodes)
    between = before & _reached(olds, lambda node: node.users)
    if any(node.op == "call_module" for node in between):  # a recurrent layer: its state is an activation like others
        between = set()
    for node in between | (set() if value.users else _read_by_none_but(value)):
        node.meta |= {REASON: BUFFER_STATE, BY_REQUEST: True}
    with graph.inserting_before(next(iter(reversed(graph.nodes)))):
        buffer = graph.get_attr(path)
        store = graph.call_function(assign_buffer, (buffer, value))
    store.meta[VALUE] = NoneType
    if olds:
        buffer.meta[VALUE] = olds[0].meta.get(VALUE)


def _reached(starts: Iterable[Node], step: Callable[[Node], Iterable[Node]]) -> set[Node]:
    found, pending = set(starts), list(starts)
    while pending:
        new = [node for node in step(pending.pop()) if node not in found]
        found.update(new)
        pending += new
    return found


def _read_by_none_but(value: Node) -> set[Node]:
    """``value``, and the nodes before it whose values only they read."""
    found = {value}
    for node in reversed(value.graph.nodes):
        if node.op in ("call_function", "call_method") and node.users and found.issuperset(node.users):
            found.add(node)
    return found
