"""Edits a graph as torch.fx cannot, and writes new nodes into it: the only file that touches graph internals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from fxquant.capture.trace_guards import GUARDS
from fxquant.graph.aliases import changed_values
from fxquant.graph.operators.spelling import canonical_call
from fxquant.graph.query import COMPUTED_OF, INPLACE, VALUE, WRAPPED, TensorInfo, info_of, module_path, tensors_of


def add_module(gm: GraphModule, wanted: str, module: nn.Module, *, instead_of: Iterable[Node] = ()) -> str:
    """Put a module into ``gm`` at the path ``wanted``, or at ``wanted_1``, ``wanted_2``, … if that is taken.

    Args:
        instead_of: Calls that this module replaces. A path that the user's code calls there is free, unless another
            call of the graph uses it too, or something reads a parameter of the module that is there.

    Returns:
        The path, as target for ``call_module``.
    """
    replaced = tuple(instead_of)
    free = {path for path, called in map(module_path, replaced) if called is not None}
    free |= {str(node.target) for node in replaced if node.op == "call_module"}
    free -= {str(node.target) for node in gm.graph.nodes if node.op == "call_module" and node not in replaced}
    free -= {path for node in gm.graph.nodes if node.op == "get_attr" for path in _holders(str(node.target))}
    target, count = wanted, 0
    while target not in free and _exists(gm, target):
        count += 1
        target = f"{wanted}_{count}"
    gm.add_submodule(target, module)
    return target


def _holders(target: str) -> Iterator[str]:
    """Yield the paths of the modules that a parameter lies in."""
    while "." in target:
        target = target.rpartition(".")[0]
        yield target


def _exists(gm: GraphModule, target: str) -> bool:
    parent, _, name = target.rpartition(".")
    try:
        return hasattr(gm.get_submodule(parent), name)
    except AttributeError:
        return False


def free_name(model: nn.Module, name: str) -> str:
    """Return a name that no part of a module has: the one given, or that with ``_`` after it."""
    while name in model._modules or name in model._parameters or name in model._buffers:
        name += "_"
    return name


def vacate(gm: GraphModule, path: str) -> bool:
    """Remove what parameter, buffer or module is at ``path``, unless something calls it, holds it, or reads from there.

    Returns:
        Whether the place is free now.
    """
    for node in gm.graph.nodes:
        if node.op in ("call_module", "get_attr") and _overlap(str(node.target), path):
            return False
    if _exists(gm, path):
        parent, _, name = path.rpartition(".")
        delattr(gm.get_submodule(parent), name)
    return True


def _overlap(a: str, b: str) -> bool:
    return f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.")


def erase_unread(graph: Graph, nodes: Iterable[Node]) -> None:
    """Erase those of ``nodes`` that nothing reads, and then what only they read. What changes a tensor stays."""
    wanted = set(nodes)
    for node in reversed(graph.nodes):
        if node in wanted and not node.users and node.op != "placeholder" and not changed_values(node):
            wanted.update(node.all_input_nodes)
            graph.erase_node(node)


def insert_after(node: Node, target: str, *, users: Iterable[Node]) -> Node:
    """Call the module ``target`` on the value of ``node``; ``users`` read the result in place of the value."""
    graph, readers = node.graph, tuple(users)
    with graph.inserting_after(_end_of_inputs(node)):
        call = graph.create_node("call_module", target, (node,), name=target.replace(".", "_"))
    call.meta = {key: value for key, value in node.meta.items() if key not in (COMPUTED_OF, INPLACE)}
    for user in readers:
        user.replace_input_with(node, call)
    return call


def _end_of_inputs(node: Node) -> Node:
    """``node``, or, if it is a placeholder, the last one, or its last guard: these come before all that is computed."""
    last = node
    while node.op == "placeholder" and (last.next.op == "placeholder" or last.next.target in GUARDS):
        last = last.next
    return last


def gather_placeholders(graph: Graph, order: Sequence[str]) -> None:
    """Move all inputs to the head of the graph, in the order of their names."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    placeholders.sort(key=lambda node: order.index(str(node.target).lstrip("*")))
    for node in reversed(placeholders):
        graph._root.append(node)


def replace_node(old: Node, new: Node) -> None:
    """Let ``new`` stand for ``old``: its users, its name, its metadata where ``new`` has none. ``old`` is erased."""
    old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    new.meta = {**{key: value for key, value in old.meta.items() if key != WRAPPED}, **new.meta}
    name = old.name
    old.graph.erase_node(old)
    rename(new, name)


def substitute(reader: Node, old: Node, new: Any) -> None:
    """Let ``reader`` read ``new``, which need not be a node, in place of a node."""
    reader.args = map_arg(reader.args, lambda node: new if node is old else node)
    reader.kwargs = map_arg(reader.kwargs, lambda node: new if node is old else node)


def rename(node: Node, name: str) -> None:
    """Give a node a name that is free: its old bearer was erased or renamed."""
    if node.name != name:
        node.name = name


def retarget(node: Node, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
    """Make ``node`` another call, in its place: its name, its readers and its meta stay."""
    if target is not node.target:
        node.meta.pop(WRAPPED, None)
    node.op = op
    node.target = target
    node.args = args
    node.kwargs = dict(kwargs or {})


def positions(graph: Graph) -> dict[Node, int]:
    """Node -> its place in the order of execution."""
    return {node: index for index, node in enumerate(graph.nodes)}


def redirect_later_reads(node: Node, new: Node, order: Mapping[Node, int]) -> None:
    """Let everything that reads ``node`` after ``new`` read ``new`` instead."""
    node.replace_all_uses_with(new, delete_user_cb=lambda user: order[user] > order[new], propagate_meta=False)


def order_alike(module: nn.Module, like: nn.Module) -> None:
    """Let parameters, buffers and modules stand in the order of those of the same names in ``like``, others after."""
    others = dict(like.named_modules(remove_duplicate=False))
    for path, own in module.named_modules(remove_duplicate=False):
        if path in others:
            for kind in ("_parameters", "_buffers", "_modules"):
                found, order = getattr(own, kind), list(getattr(others[path], kind))
                names = [name for name in order if name in found] + [name for name in found if name not in order]
                items = {name: found[name] for name in names}
                found.clear()
                found.update(items)


def keep_children_only(gm: GraphModule, path: str) -> None:
    """Drop the parameters of a module that no node calls or reads a parameter of; its children stay where they are."""
    for node in gm.graph.nodes:
        if node.op == "call_module" and node.target == path:
            return
        if node.op == "get_attr" and str(node.target).rpartition(".")[0] == path:
            return
    container = nn.Module()
    for name, child in gm.get_submodule(path).named_children():
        container.add_module(name, child)
    container.training = gm.get_submodule(path).training
    gm.set_submodule(path, container)


def drop_unused_modules(gm: GraphModule) -> None:
    """Remove submodules that no node calls or reads from, however deep."""
    gm.delete_all_unused_submodules()


def erase_behind(last: Node) -> set[Node]:
    """Erase the nodes after one, which it answers with, while a trace is under way.

    Not those that others hold on to, or may: parameters, and attributes of proxies from before.
    """
    new: list[Node] = []
    for node in reversed(last.graph.nodes):
        if node is last:
            break
        new.append(node)
    erased = set()
    for node in new:
        held = node.op == "get_attr" or (node.target is getattr and node.args[0] not in new)
        if not held and not node.users:
            erased.add(node)
            node.graph.erase_node(node)
    return erased


_INHERITED = ("stack_trace", "nn_module_stack")


@dataclass(frozen=True, slots=True)
class Emitter:
    """Makes nodes that stand for (a part of) what ``place`` computes: at its place, from the same line of the user's.

    Nothing is run: values are inferred from those of the arguments, on the meta device.
    """

    gm: GraphModule
    place: Node
    meta: dict[str, Any] = field(default_factory=dict)
    """What every new node gets beside that."""

    def function(self, target: Any, *args: Any, value: Any = None, **kwargs: Any) -> Node:
        """Call a function; ``value`` is what is known of the result, where it cannot be inferred."""
        return self._create("call_function", target, args, kwargs, value)

    def method(self, target: str, *args: Any, value: Any = None, **kwargs: Any) -> Node:
        """Call a tensor method."""
        return self._create("call_method", target, args, kwargs, value)

    def module(self, path: str, *args: Any, value: Any, meta: dict[str, Any] | None = None) -> Node:
        """Call a module of the graph."""
        node = self._create("call_module", path, args, {}, value)
        node.meta.update(meta or {})
        return node

    def _create(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Node:
        with self.gm.graph.inserting_before(self.place):
            node = self.gm.graph.create_node(op, target, args, kwargs)
        node.meta = {key: self.place.meta[key] for key in _INHERITED if key in self.place.meta}
        node.meta |= self.meta
        node.meta[VALUE] = _inferred(node) if value is None else value
        if op != "call_module" and (call := canonical_call(node)) is not None:
            retarget(node, "call_function", call.target, call.args, call.kwargs)
        return node


def _inferred(node: Node) -> Any:
    """Infer the value of a node on the meta device, from values like those of its arguments."""
    devices = [info.device for argument in node.all_input_nodes for info in tensors_of(argument)]
    args = map_arg(node.args, _stand_in)
    kwargs = map_arg(node.kwargs, _stand_in)
    call: Any = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
    return pytree.tree_map_only(
        TensorInfo, lambda info: replace(info, device=devices[0]), info_of(call(*args, **kwargs))
    )


def _stand_in(node: Node) -> Any:
    return pytree.tree_map(partial(_tensor_like, node), node.meta[VALUE])


def _tensor_like(node: Node, info: Any) -> Tensor:
    if not isinstance(info, TensorInfo):
        raise TypeError(f"the value of {node.name} is no tensor: say what the result is")
    if info.contiguous:
        return torch.empty(info.shape, dtype=info.dtype, device="meta")
    spread: Tensor = torch.empty((*info.shape, 2), dtype=info.dtype, device="meta")
    return spread[..., 0]
