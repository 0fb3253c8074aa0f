"""Makes one graph of a program in evaluation mode: what it calls as a graph of its own is written into it."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fxquant.errors import TracingError

INLINED = {
    # Name of a higher-order operator -> how many arguments stand before the graph.
    "wrap_with_set_grad_enabled": 1,
    "wrap_with_autocast": 4,
    "invoke_subgraph": 0,
}

_ACTIVE = {"dropout": 2, "feature_dropout": 2, "alpha_dropout": 2, "batch_norm": 5, "rrelu": 3}
"""Operators of ATen that do something else while training -> the position of the argument that says so."""
_TRANSFORMS = "torch._functorch.predispatch"
"""Module of the functions that begin and end a ``torch.vmap``: graphs whose unread nodes are dropped lose them."""


def check_in_evaluation(program: GraphModule) -> None:
    """Refuse a program that was exported in training mode.

    Raises:
        TracingError: it drops values, or normalizes by the batch.
    """
    for node in program.graph.nodes:
        target: Any = node.target
        if not isinstance(target, torch._ops.OpOverload):
            continue
        place = _ACTIVE.get(target._schema.name.partition("::")[2].rstrip("_"))
        if place is not None and len(node.args) > place and node.args[place] is True:
            raise TracingError(
                "the program was exported in training mode: it goes on dropping values, or normalizing by the batch",
                at=node,
                got=str(target),
                expected="a program of the model in evaluation mode",
                hint="torch.export.export(model.eval(), example_inputs)",
            )


def inlined(gm: GraphModule) -> GraphModule:
    """Return a program's module whose graph calls no graphs but those of branches: a copy, unless it is that already.

    Gradients flow through what the user's code kept them from: only training would tell the difference.

    Raises:
        TracingError: a part of the program is in the precision of ``torch.autocast``, or runs in ``torch.vmap``.
    """
    for node in gm.graph.nodes:
        if getattr(node.target, "__module__", "") == _TRANSFORMS:
            raise TracingError(
                "a part of the program runs inside torch.vmap, and no observer can measure single samples",
                at=node,
                expected="a forward that computes whole batches",
                hint="move what calls torch.vmap into a submodule of its own, which leaf_modules can then keep whole",
            )
    if not any(_graph_argument(node) is not None for node in gm.graph.nodes):
        return gm
    graph = Graph()
    given: dict[Node, Any] = {}
    output = _copy(gm, gm, "", graph, given)
    graph.output(output)
    return GraphModule(gm, graph)


def copy_into(graph: Graph, program: GraphModule, path: str, known: dict[Node, Any]) -> Any:
    """Copy the nodes of the graph at a path of a program; return what it gives.

    Args:
        graph: Gets the copies.
        program: The program's module.
        path: Where the graph is in it.
        known: The inputs of that graph, and what stands for them; the other nodes are added.
    """
    inner: Any = program.get_submodule(path)
    return _copy(program, inner, f"{path}.", graph, known)


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
