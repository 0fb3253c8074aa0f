"""Puts the nested inputs and outputs of a program back, of which its graph knows the tensors alone."""

from __future__ import annotations

import dataclasses
import operator
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from fxquant.capture.attributes import changes_in_place, store_at_the_end
from fxquant.errors import TracingError


def write_inputs(graph: Graph, names: Sequence[str], spec: Any) -> list[Node]:
    """Write the arguments of a program, and what takes the tensors out of those that are nested.

    Args:
        graph: An empty graph.
        names: The arguments' names, positional ones first.
        spec: The structure of ``(args, kwargs)``.

    Returns:
        The nodes of the tensors and numbers in the arguments, in the order of the program.
    """
    args, kwargs = spec.children()
    structures = [*args.children(), *kwargs.children()]
    given = [graph.placeholder(name) for name in names]
    leaves: list[Node] = []
    for source, structure in zip(given, structures, strict=True):
        leaves += _leaves(graph, source, structure)
    return leaves


def _leaves(graph: Graph, source: Node, spec: Any) -> Iterator[Node]:
    if spec.is_leaf():
        yield source
        return
    children = spec.children()
    if spec.type in (dict, OrderedDict):
        keys: Sequence[Any] = spec.context
        places: list[tuple[Any, Any]] = [(operator.getitem, key) for key in keys]
    elif issubclass(spec.type, (tuple, list)):
        places = [(operator.getitem, i) for i in range(len(children))]
    elif dataclasses.is_dataclass(spec.type) and len(field_names(spec)) == len(children):
        places = [(getattr, name) for name in field_names(spec)]
    else:
        raise _unknown(spec, "takes")
    for (function, place), child in zip(places, children, strict=True):
        yield from _leaves(graph, graph.call_function(function, (source, place)), child)


def field_names(spec: Any) -> list[str]:
    """Return the names under which an instance of a registered class holds its values; none if they are not known."""
    context = spec.context
    if isinstance(context, (tuple, list)) and len(context) == 2 and isinstance(context[0], (tuple, list)):
        context = context[0]  # torch's own registration of data classes: (names, those that are None)
    named = isinstance(context, (tuple, list)) and all(isinstance(name, str) for name in context)
    return list(context) if named else []


def write_output(graph: Graph, values: Sequence[Any], spec: Any) -> Any:
    """Return the output of a program, as the user's model gives it: an argument of an output node.

    Args:
        graph: Gets a call for each instance of a class that is no tuple, list or dict.
        values: The nodes and numbers that the program gives, one after the other.
        spec: The structure of the output.

    Raises:
        TracingError: the output holds an instance of a class that cannot be put back.
    """
    return _built(graph, iter(values), spec)


def _built(graph: Graph, values: Iterator[Any], spec: Any) -> Any:
    if spec.is_leaf():
        return next(values)
    parts = [_built(graph, values, child) for child in spec.children()]
    kind: Any = spec.type
    if kind is tuple or kind is list:
        return kind(parts)
    if kind is dict:
        return dict(zip(spec.context, parts, strict=True))
    if kind is OrderedDict:
        return graph.call_function(OrderedDict, (list(zip(spec.context, parts, strict=True)),))
    if pytree.is_namedtuple_class(spec.context):
        return graph.call_function(spec.context, tuple(parts))
    names = field_names(spec)
    if len(names) == len(parts):
        return graph.call_function(kind, (), dict(zip(names, parts, strict=True)))
    raise _unknown(spec, "gives")


def _unknown(spec: Any, does: str) -> TracingError:
    return TracingError(
        f"an exported program {does} an instance of a class whose parts have no names",
        got=getattr(spec.type, "__name__", str(spec.type)),
        expected="tensors, tuples, lists, dicts, named tuples and data classes of them",
        hint="export a module that takes the tensors, and gives them in a tuple or a dict",
    )


def write_stored(graph: Graph, stored: Sequence[tuple[str, Node]]) -> None:
    """Write, at the end of a graph, the values that buffers get: the path of each, and what is stored there."""
    for path, value in stored:
        if not changes_in_place(value, path):
            store_at_the_end(graph, path, value)
