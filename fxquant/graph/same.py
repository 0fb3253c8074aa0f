"""Whether two traces came out the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree


def is_same_graph(one: Graph, root: nn.Module, other: Graph, other_root: nn.Module) -> bool:
    """Whether two graphs compute the same, node by node, on the same attributes or on constants of the same values.

    Args:
        one: A graph.
        root: The module whose attributes it reads.
        other: Another graph.
        other_root: The same for that.
    """
    calls, others = ([node for node in graph.nodes if node.op != "get_attr"] for graph in (one, other))
    counterpart = dict(zip(calls, others, strict=False))

    def same(a: Any, b: Any) -> bool:
        if not isinstance(a, Node) or not isinstance(b, Node):
            return type(a) is type(b) and bool(a == b)
        if a.op == b.op == "get_attr":
            return _is_same_value(_attribute(root, str(a.target)), _attribute(other_root, str(b.target)))
        return counterpart.get(a) is b

    for a, b in zip(calls, others, strict=False):
        given, structure = pytree.tree_flatten((a.args, a.kwargs))
        taken, other_structure = pytree.tree_flatten((b.args, b.kwargs))
        if a.op != b.op or a.target != b.target or structure != other_structure:
            return False
        if not all(map(same, given, taken)):
            return False
    return len(calls) == len(others)


def _attribute(root: nn.Module, target: str) -> Any:
    path, _, name = target.rpartition(".")
    return getattr(root.get_submodule(path), name)


def _is_same_value(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
