"""Tells normalized graphs apart."""

from __future__ import annotations

import hashlib
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg


def fingerprint(gm: GraphModule) -> str:
    """A hash of what a graph computes: operators, their arguments and the layers' geometry; names do not count."""
    numbers = {node: f"%{number}" for number, node in enumerate(gm.graph.nodes)}
    lines = [f"{node.op} {_target(gm, node)} {_arguments(node, numbers)}" for node in gm.graph.nodes]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _target(gm: GraphModule, node: Node) -> str:
    if node.op == "call_module":
        return repr(gm.get_submodule(str(node.target)))
    if node.op == "call_function":
        return str(getattr(node.target, "__name__", node.target))
    return str(node.target) if node.op == "call_method" else ""


def _arguments(node: Node, numbers: dict[Node, str]) -> Any:
    return map_arg((node.args, node.kwargs), numbers.__getitem__)
