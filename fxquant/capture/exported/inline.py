"""Writes what programs call as a graph of its own, without gradients, into the graph that calls it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fxquant.errors import TracingError

INLINED = {
    # Name of a higher-order operator -> how many arguments stand before the graph.
    "wrap_with_set_grad_enabled": 1,
    "wrap_with_autocast": 4,
    "invoke_subgraph": 0,
}


def inlined(gm: GraphModule) -> GraphModule:
    """Return a copy of a program's module whose graph calls no graphs but those of branches.

    Gradients flow through what the user's code kept them from: only training would tell the difference.

    Raises:
        TracingError: a part of the program is in the precision of ``torch.autocast``.
    """
    graph = Graph()
    given: dict[Node, Any] = {}
    output = _copy(gm, gm, "", graph, given)
    graph.output(output)
    own = GraphModule(_holder(gm), graph)
    return own


def _holder(gm: GraphModule) -> nn.Module:
    return gm


def _copy(root: GraphModule, inside: GraphModule, prefix: str, graph: Graph, known: dict[Node, Any]) -> Any:
    """Copy the nodes of one graph; return what it gives."""
    output: Any = None
    for node in inside.graph.nodes:
        if node.op == "output":
            output = _mapped(node.args[0], known)
        elif node in known:
            continue
        elif (first := _graph_argument(node)) is not None:
            callee: Any = node.args[first]
            path = prefix + str(callee.target)
            inner: Any = root.get_submodule(path)
            taken = [one for one in inner.graph.nodes if one.op == "placeholder"]
            values = [_mapped(value, known) for value in _behind(node, first)]
            known[node] = _copy(root, inner, f"{path}.", graph, dict(zip(taken, values, strict=True)))
        elif _is_item(node) and isinstance(known.get(node.args[0]), (tuple, list)):
            known[node] = known[node.args[0]][node.args[1]]
        else:
            copied = graph.node_copy(node, lambda one: known[one])
            if node.op == "get_attr":
                copied.target = prefix + str(node.target)
            known[node] = copied
    return output


def _behind(node: Node, first: int) -> tuple[Any, ...]:
    name = getattr(node.target, "__name__", "")
    return node.args[first + 2 :] if name == "invoke_subgraph" else node.args[first + 1 :]


def _graph_argument(node: Node) -> int | None:
    """Return the position of the graph that a node calls and that can stand in its place."""
    target: Any = node.target
    if not isinstance(target, torch._ops.HigherOrderOperator) or target.__name__ not in INLINED:
        return None
    if target.__name__ == "wrap_with_autocast" and node.args[2] is not False:
        raise TracingError(
            "a part of the program is computed in the precision of torch.autocast",
            at=node,
            got=f"torch.autocast({node.args[0]!r}, dtype={node.args[1]})",
            expected="a program in the dtype of its inputs",
            hint="export the model without torch.autocast",
        )
    return INLINED[target.__name__]


def _is_item(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _mapped(value: Any, known: dict[Node, Any]) -> Any:
    if isinstance(value, Node):
        return known[value]
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(one, known) for one in value)
    return map_arg(value, lambda one: known[one])
