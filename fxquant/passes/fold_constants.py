"""Values that are made of constants and then changed in place, by constants, are constants too: what they end as."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fxquant.graph.aliases import Roots, changed_argument, changed_values, roots_of
from fxquant.graph.constants import Aside, ComputedValue, Constants, NotConstantError, attributes_read
from fxquant.graph.edit import erase_unread, positions, replace_node
from fxquant.graph.module import NamedGraphModule
from fxquant.graph.query import COMPUTED_OF, is_shape_query
from fxquant.nn.computed import InPlaceTensor
from fxquant.passes.base import PassContext, graph_pass


@graph_pass(keeps_values=True)
def fold_constants(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``bias = self.bias.clone(); bias[4:8].zero_()`` becomes a buffer that holds the result, and no change in place.

    Only where every read of the values comes after the last change, and nothing but this memory is changed. For
    training, it is noted how the values are made of parameters and buffers, which may change.
    """
    aside = Aside()
    roots: dict[Node, Roots] = {}
    for node in gm.graph.nodes:
        roots[node] = roots_of(node, roots)
    constants, order = Constants(gm), positions(gm.graph)
    for created, aliases, changes in list(_changed(roots)):
        if not _is_read_after(changes, aliases, order):
            continue
        try:
            value = _folded(created, aliases, changes, constants)
        except NotConstantError:
            continue
        gone = {created, *changes}
        helpers = {*aliases, *(source for node in gone for source in node.all_input_nodes)} - gone
        computed_from = _program(created, aliases, changes, aside) if ctx.trains else None
        _replace(gm, created, changes, value, computed_from)
        erase_unread(gm.graph, helpers)
    return gm


def _changed(roots: dict[Node, Roots]) -> Iterator[tuple[Node, list[Node], list[Node]]]:
    """New memory that is changed in place: the node that makes it, every value that may lie in it, the changes."""
    changes = [(node, changed) for node in roots for changed in changed_values(node)]
    for created in [node for node in roots if roots[node] == frozenset((node,)) and node.op != "placeholder"]:
        aliases = [node for node in roots if created in roots[node]]
        own = [node for node, changed in changes if created in roots[changed]]
        inside = all(set(roots[changed]) <= set(aliases) for node, changed in changes if node in own)
        if own and inside and all(isinstance(changed_argument(node), Node) for node in own):
            yield created, aliases, own


def _is_read_after(changes: list[Node], aliases: list[Node], order: dict[Node, int]) -> bool:
    inside = {*aliases, *changes}
    readers = {user for node in aliases for user in node.users if user not in inside and not is_shape_query(user)}
    return all(order[reader] > order[changes[-1]] for reader in readers)


def _folded(created: Node, aliases: Iterable[Node], changes: list[Node], constants: Constants) -> Tensor:
    """Runs what makes and changes the memory, in order."""
    env: dict[Node, Any] = {created: constants.value(created)}
    if not isinstance(env[created], Tensor):
        raise NotConstantError
    for node in dict.fromkeys((*aliases, *changes)):
        if node is created or node.op not in ("call_function", "call_method"):
            continue
        args, kwargs = map_arg((node.args, node.kwargs), lambda arg: env[arg] if arg in env else constants.value(arg))
        function: Any = node.target if node.op == "call_function" else getattr(args[0], str(node.target))
        env[node] = function(*(args if node.op == "call_function" else args[1:]), **kwargs)
    return env[created].detach()


def _program(created: Node, aliases: Iterable[Node], changes: list[Node], aside: Aside) -> ComputedValue | None:
    """Return a module that makes the memory of what it reads, parameters and buffers, and changes it; None of none."""
    inside = {created, *aliases, *changes}
    order = positions(created.graph)
    steps = sorted((node for node in inside if node.op in ("call_function", "call_method")), key=order.__getitem__)
    read = dict.fromkeys(source for node in steps for source in node.all_input_nodes if source not in steps)
    graph = Graph()
    copies = {source: graph.placeholder(source.name) for source in read}
    for node in steps:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[created])
    sources = tuple(aside.copy(source) for source in read)
    if not any(map(attributes_read, sources)):
        return None
    return ComputedValue(InPlaceTensor(NamedGraphModule(nn.Module(), graph)), sources)


def _replace(
    gm: GraphModule, created: Node, changes: list[Node], value: Tensor, computed_from: ComputedValue | None
) -> None:
    name = f"_folded_{created.name}"
    gm.register_buffer(name, value)
    for node in reversed(changes):
        node.replace_all_uses_with(changed_argument(node))
        gm.graph.erase_node(node)
    with gm.graph.inserting_before(created):
        buffer = gm.graph.get_attr(name)
    buffer.meta = {} if computed_from is None else {COMPUTED_OF: computed_from}
    replace_node(created, buffer)
