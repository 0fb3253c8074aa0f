"""A part of a graph as a Python function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import map_arg

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
    graph.output(map_arg(results, lambda used: copies[used]))
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(compile(code.src, "<part of a converted graph>", "exec"), names)
    return names["forward"]
