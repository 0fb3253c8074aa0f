"""Arguments that a call may leave out, where no example tells whether it does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from fxquant.capture.trace_guards import require_given, require_value
from fxquant.capture.tracer import QuantTracer
from fxquant.capture.untraceable import Untraceable, is_same_graph, trace_what_can_be
from fxquant.errors import FxQuantError, TracingError

Traced = tuple[Graph, tuple[Untraceable, ...], QuantTracer]
"""A graph, what was kept whole in it, and the tracer that made it."""
Trace = Callable[[nn.Module, Mapping[str, Any]], Traced]


def trace_optional(
    make_tracer: Callable[[tuple[str, ...], bool, Mapping[str, Any]], QuantTracer],
    model: nn.Module,
    defaults: Mapping[str, Any],
    *,
    leave_out: bool,
    keep_untraceable: bool,
) -> Traced:
    """Trace with all arguments given; where that fails, without those that have defaults.

    Code that asks whether a traced argument is None gets no for an answer, and nothing tells that it has asked. So the
    model is traced again without such an argument: where that gives another graph, calls have to give the argument.

    Args:
        make_tracer: As for ``trace_what_can_be``, and given the arguments that are left out and their defaults.
        model: What to trace.
        defaults: The arguments that a call may leave out, and their defaults; empty where an example tells all.
        leave_out: Leave them out in any case.
        keep_untraceable: As for ``trace_what_can_be``, as are the errors.
    """

    def traced(root: nn.Module, left_out: Mapping[str, Any]) -> Traced:
        tracers: list[QuantTracer] = []

        def make(paths: tuple[str, ...], factories: bool) -> QuantTracer:
            tracers.append(make_tracer(paths, factories, left_out))
            return tracers[-1]

        graph, untraceable = trace_what_can_be(make, root, keep_untraceable=keep_untraceable)
        return graph, untraceable, tracers[-1]

    if leave_out:
        return traced(model, defaults)
    try:
        found = traced(model, {})
    except TracingError:  # of a branch on the value of an argument, perhaps
        if not defaults:
            raise
        return traced(model, defaults)
    _guard(found[0], model, [name for name, default in defaults.items() if default is None], traced)
    return found


def _guard(graph: Graph, model: nn.Module, names: Iterable[str], traced: Trace) -> None:
    """Let, in place, a graph refuse calls without an argument if code does something else where it is None."""
    known = {str(node.target): node for node in graph.nodes if node.op == "placeholder"}
    left_out = [name for name in names if name in known]
    if not left_out or _is_same_without(graph, model, left_out, traced):
        return
    for name in left_out:
        if len(left_out) == 1 or not _is_same_without(graph, model, [name], traced):
            with graph.inserting_after(known[name]):
                graph.call_function(require_given, (known[name], "", name))


def _is_same_without(graph: Graph, model: nn.Module, names: list[str], traced: Trace) -> bool:
    """Tell whether the model is traced to the same operators where arguments are None, which take None then."""
    # A trace may change attributes of the model: parameters and buffers aside, it gets a copy.
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    own = copy.deepcopy(model, shared)
    try:
        other, *_ = traced(own, dict.fromkeys(names))
    except FxQuantError:  # without these arguments, the code cannot be traced
        return False
    given, without = _copy(graph), _copy(other)
    for node in list(given.nodes):
        if node.op == "placeholder" and node.target in names:
            for user in list(node.users):
                user.args, user.kwargs = _with_none(user.args, node), _with_none(user.kwargs, node)
    for node in list(without.nodes):
        arguments: Any = node.args
        if node.target is require_value and arguments[2] in names:
            without.erase_node(node)
    return is_same_graph(given, model, without, own)


def _copy(graph: Graph) -> Graph:
    result = Graph()
    result.output(result.graph_copy(graph, {}))
    return result


def _with_none(arguments: Any, node: Node) -> Any:
    return map_arg(arguments, lambda each: None if each is node else each)
