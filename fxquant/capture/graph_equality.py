"""Whether two traces came out the same."""

from __future__ import annotations

from typing import Any

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
        if type(a) is not type(b):
            return False
        if isinstance(a, slice):  # which pytree takes for one value, whatever its ends are
            return all(map(same, (a.start, a.stop, a.step), (b.start, b.stop, b.step)))
        if not isinstance(a, Node):
            return bool(a == b) or (a != a and b != b)
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
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())
