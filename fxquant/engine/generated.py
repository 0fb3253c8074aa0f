"""A part of a graph as a Python function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch.fx import Graph, Node

Generated = Callable[..., Any]


def function_of(nodes: Iterable[Node], inputs: Sequence[Node], results: Any, fixed: Mapping[Node, Any]) -> Generated:
    """A function that runs nodes as the graph's own code does.

    Args:
        nodes: In the order of the graph.
        inputs: What they read of other nodes.
        results: Nodes, in any structure that ``torch.fx`` knows.
        fixed: Nodes that need not run, since their value is known.

    Returns:
        ``function(module, *inputs)``, with the module that owns the graph.
    """
    graph = Graph()
    copies: dict[Node, Any] = dict(fixed)
    for index, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"input_{index}")
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda used: copies[used])
    graph.output(_mapped(results, copies))
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(compile(code.src, "<part of a converted graph>", "exec"), names)
    return names["forward"]


def _mapped(value: Any, copies: Mapping[Node, Any]) -> Any:
    if isinstance(value, Node):
        return copies[value]
    if isinstance(value, dict):
        return {key: _mapped(item, copies) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(_mapped(item, copies) for item in (value.start, value.stop, value.step)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, copies) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(item, copies) for item in value)
    return value
