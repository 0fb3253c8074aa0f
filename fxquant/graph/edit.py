"""Changes to a graph: the only file that touches what is inside one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import Graph, GraphModule, Node


def retarget(node: Node, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
    """Make ``node`` another call, in its place: its name, its readers and its meta stay."""
    node.op = op
    node.target = target
    node.args = args
    node.kwargs = dict(kwargs or {})


def positions(graph: Graph) -> dict[Node, int]:
    """Node -> its place in the order of execution."""
    return {node: index for index, node in enumerate(graph.nodes)}


def redirect_later_reads(node: Node, new: Node, order: Mapping[Node, int]) -> None:
    """Let everything that reads ``node`` after ``new`` read ``new`` instead."""
    node.replace_all_uses_with(new, delete_user_cb=lambda user: order[user] > order[new], propagate_meta=False)


def free_name(gm: GraphModule, prefix: str) -> str:
    """``prefix``, or the first of ``prefix_1``, ``prefix_2``, … that is no attribute of ``gm`` yet."""
    name, count = prefix, 0
    while hasattr(gm, name):
        count += 1
        name = f"{prefix}_{count}"
    return name


def add_module(gm: GraphModule, prefix: str, module: nn.Module) -> str:
    """Install ``module`` at the top of ``gm`` under a free name, which is returned."""
    name = free_name(gm, prefix)
    gm.add_module(name, module)
    return name


def erase(node: Node) -> None:
    """Remove a node that nothing reads."""
    node.graph.erase_node(node)


def drop_unused_modules(gm: GraphModule) -> None:
    """Remove submodules that no node calls or reads from, however deep."""
    gm.delete_all_unused_submodules()
