"""Edits of a graph that torch.fx lacks: the only file that touches graph internals."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.fx import GraphModule, Node


def add_module(gm: GraphModule, wanted: str, module: nn.Module, *, replacing: Node | None = None) -> str:
    """Put a module into ``gm`` at the path ``wanted``, or at ``wanted_1``, ``wanted_2``, … if that is taken.

    Args:
        replacing: The call whose module this one replaces: its path counts as free unless another call uses it too.

    Returns:
        The path, as target for ``call_module``.
    """
    target, count = wanted.replace("@", "_"), 0
    while _is_taken(gm, target, replacing):
        count += 1
        target = f"{wanted}_{count}"
    gm.add_submodule(target, module)
    return target


def _is_taken(gm: GraphModule, target: str, replacing: Node | None) -> bool:
    parent, _, name = target.rpartition(".")
    try:
        holder = gm.get_submodule(parent)
    except AttributeError:
        return False
    if not hasattr(holder, name):
        return False
    if replacing is None or replacing.target != target:
        return True
    return any(node.op == "call_module" and node.target == target and node is not replacing for node in gm.graph.nodes)


def insert_after(node: Node, target: str, *, users: Iterable[Node]) -> Node:
    """Call the module ``target`` on the value of ``node``; ``users`` read the result in place of the value."""
    graph, readers = node.graph, tuple(users)
    with graph.inserting_after(_last_placeholder(node)):
        call = graph.create_node("call_module", target, (node,), name=target.replace(".", "_"))
    call.meta = {key: value for key, value in node.meta.items() if key != "inplace"}
    for user in readers:
        user.replace_input_with(node, call)
    return call


def _last_placeholder(node: Node) -> Node:
    """``node``, or, if it is a placeholder, the last one: inputs stay together at the head of the graph."""
    while node.op == "placeholder" and node.next.op == "placeholder":
        node = node.next
    return node


def replace_node(old: Node, new: Node) -> None:
    """Let ``new`` stand for ``old``: all its users, its name, and its metadata where ``new`` has none. ``old`` is erased."""
    old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    new.meta = {**old.meta, **new.meta}
    name = old.name
    old.graph.erase_node(old)
    rename(new, name)


def rename(node: Node, name: str) -> None:
    """Give a node a name that is free: its old bearer was erased or renamed."""
    if node.name != name:
        node.name = name
