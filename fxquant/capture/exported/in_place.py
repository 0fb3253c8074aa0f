"""Puts the graph of an exported submodule in the place of its call, in the graph of the model."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.capture.exported.branches import Branches, move_under
from fxquant.capture.trace_guards import require_value
from fxquant.graph.edit import substitute
from fxquant.graph.inputs import bind
from fxquant.graph.module import STACK, NamedGraphModule
from fxquant.graph.query import CALLED


def put_in_place(gm: GraphModule, path: str, inner: NamedGraphModule) -> None:
    """Replace the calls of the module at a path by the nodes of its graph.

    Raises:
        InputError: a call has other arguments than the submodule was exported with.
    """
    calls = [node for node in gm.graph.nodes if node.op == "call_module" and node.target == path]
    original = gm.get_submodule(path)
    for call in calls:
        _given(original, path, inner, call)  # raises before anything is changed
    holder = nn.Module()
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        setattr(holder, name, getattr(inner, name))
    for module in list(holder.modules()):
        if isinstance(module, Branches):
            move_under(module, path)
    gm.set_submodule(path, holder.eval())
    for call in calls:
        _replace(call, _copied(call, path, inner, _given(original, path, inner, call)))
    gm.recompile()


def _given(original: nn.Module, path: str, inner: NamedGraphModule, call: Node) -> dict[str, Any]:
    """Bind the arguments of a call; those that the program has as numbers must be these."""
    given = bind(original, call.args, call.kwargs, f"the inputs of {path!r}")
    names = {str(node.target): node for node in inner.graph.nodes if node.op == "placeholder"}
    if given.keys() != names.keys():
        given = bind(inner, call.args, call.kwargs, f"the inputs of {path!r}")
    for name, node in names.items():
        for user in node.users:
            if user.target is require_value and not isinstance(given[name], Node):
                require_value(given[name], *user.args[1:])
    return given


def _copied(call: Node, path: str, inner: NamedGraphModule, given: Mapping[str, Any]) -> Any:
    """Write the nodes of the graph in front of a call; return what they give."""
    known: dict[Node, Any] = {}
    graph = call.graph
    with graph.inserting_before(call):
        for node in inner.graph.nodes:
            if node.op == "placeholder":
                known[node] = given[str(node.target).lstrip("*")]
                continue
            args, kwargs = _mapped(node.args, known), _mapped(node.kwargs, known)
            if node.op == "output":
                return args[0]
            if node.target is require_value and not isinstance(args[0], Node):
                continue  # it is that value, in every call
            inside = node.op in ("call_module", "get_attr")
            target = f"{path}.{node.target}" if inside else node.target
            name = str(target).replace(".", "_") if inside else node.name
            known[node] = graph.create_node(node.op, target, args, kwargs, name)
            known[node].meta = _meta(node, call, path)
    raise AssertionError("a graph has an output")


def _mapped(value: Any, known: Mapping[Node, Any]) -> Any:
    if isinstance(value, Node):
        return known[value]
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(one, known) for one in value)
    if isinstance(value, dict):
        return {key: _mapped(one, known) for key, one in value.items()}
    return map_arg(value, lambda one: known[one])  # a slice


def _meta(node: Node, call: Node, path: str) -> dict[str, Any]:
    meta = dict(node.meta)
    own = {f"{path}/{key}": (f"{path}.{at}", kind) for key, (at, kind) in meta.get(STACK, {}).items() if at}
    meta[STACK] = {**call.meta.get(STACK, {}), **own}
    if CALLED in meta:
        meta[CALLED] = f"{path}.{meta[CALLED][0]}", meta[CALLED][1]
    return meta


def _replace(call: Node, result: Any) -> None:
    """Let the readers of a call read what its graph gives: parts of it where they take parts."""
    for user in list(call.users):
        found = _part(user, result)
        if found is not None:
            user.replace_all_uses_with(found, propagate_meta=False)
            user.graph.erase_node(user)
        else:
            substitute(user, call, result)
    call.graph.erase_node(call)


def _part(user: Node, result: Any) -> Node | None:
    """Return the node that a reader takes out of a tuple, a dict, or an instance of a data class."""
    if user.target not in (operator.getitem, getattr) or len(user.args) < 2:
        return None
    place: Any = user.args[1]
    if isinstance(result, Node) and isinstance(result.target, type) and result.kwargs:
        result = dict(result.kwargs)
        if isinstance(place, int) and not isinstance(place, bool):
            place = list(result)[place] if -len(result) <= place < len(result) else None
    try:
        found = result[place] if isinstance(result, (tuple, list, dict)) else None
    except (LookupError, TypeError):
        return None
    return found if isinstance(found, Node) else None
