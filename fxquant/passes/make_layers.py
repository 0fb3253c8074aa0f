"""Makes layers of functions that take constant weights, so that patterns need to know layers only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from fxquant.graph.canonical import operator_of
from fxquant.graph.constants import Constants, NotConstantError
from fxquant.graph.edit import add_module, erase_unread, retarget, vacate
from fxquant.graph.layers import LAYERS
from fxquant.graph.query import CALLED, WEIGHT, WRITTEN, qualified_name, reason_of, value_of
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.configure import own_targets


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that is to become one of a layer."""

    node: Node
    key: tuple[Any, ...]
    """Calls of equal keys call the same layer."""
    layer: nn.Module
    sources: tuple[Any, ...]
    """What the call read its tensors from."""
    origin: Node
    """Where the first of them lies, or what makes it: the layer is named after that."""


@graph_pass(after=("normalize", "decompose_compounds"), keeps_values=True)
def make_layers(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``F.conv2d(x, self.weight)`` becomes the layer that holds the weight; calls that share all tensors share it.

    The weight may be a parameter or buffer of any module, or computed of such alone (``self.weight * self.scale``).
    The layer stands where the weight stood: that of ``block.conv.weight`` at ``block.conv``, that of ``block.kernel``
    at ``block.kernel`` (so it is ``block.kernel.weight`` in a state dict), unless something else reads from there;
    then it is named as the node. Functions that a user's own pattern names stay what they are.
    """
    calls = list(_calls(gm, own_targets(ctx)))
    for call in calls:  # all before the first layer is placed: where nothing reads any more, there is room
        call.node.args = call.node.args[:1]
    read = _attributes(gm)
    erase_unread(gm.graph, (source for call in calls for source in call.sources if isinstance(source, Node)))
    made: dict[tuple[Any, ...], str] = {}
    for call in calls:
        call.node.meta |= {CALLED: (qualified_name(call.node), None), WRITTEN: call.node.target}
        if isinstance(weight := call.sources[0], Node) and weight.op == "get_attr":
            call.node.meta[WEIGHT] = str(weight.target)
        if call.key not in made:
            made[call.key] = _place(gm, call)
        retarget(call.node, "call_module", made[call.key], call.node.args)
    for path in read - _attributes(gm):
        vacate(gm, path)
    return gm


def _attributes(gm: GraphModule) -> set[str]:
    return {str(node.target) for node in gm.graph.nodes if node.op == "get_attr"}


def _calls(gm: GraphModule, theirs: set[Any]) -> Iterator[_Call]:
    constants = Constants(gm)
    layers: dict[tuple[Any, ...], nn.Module | None] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in LAYERS or node.target in theirs or reason_of(node):
            continue
        row, known = LAYERS[node.target], operator_of(node.target)
        if known is None or node.kwargs or len(node.args) != len(known.parameters):
            continue  # spelled in a way that normalize does not read
        given = dict(zip(known.parameters, node.args, strict=True))
        x = given.pop(known.parameters[0])
        sources = {name: given.pop(name) for name in row.tensors}
        info = value_of(x) if isinstance(x, Node) else None
        if info is None or any(isinstance(value, Node) for value in given.values()):
            continue
        key = (node.target, len(info.shape), repr(given), *map(_identity, sources.values()))
        if key not in layers:
            try:
                layers[key] = row.build(constants.value(sources), given, len(info.shape))
            except NotConstantError:
                layers[key] = None
        if (layer := layers[key]) is not None:
            yield _Call(node, key, layer, tuple(sources.values()), _origin(next(iter(sources.values()))))


def _identity(source: Any) -> Any:
    """Two calls read the same tensor if they read the same attribute, or the value of the same node."""
    return source.target if isinstance(source, Node) and source.op == "get_attr" else source


def _origin(source: Node) -> Node:
    """The parameter that a weight is made of, if nothing else is: of ``self.weight.t()`` it is ``self.weight``."""
    origin = source
    while len(origin.all_input_nodes) == 1:
        origin = origin.all_input_nodes[0]
    return origin if origin.op == "get_attr" else source


def _place(gm: GraphModule, call: _Call) -> str:
    source, layer = call.origin, call.layer
    if source.op == "get_attr":
        parent, _, name = str(source.target).rpartition(".")
        home = parent if parent and (name in layer._parameters or name in layer._buffers) else str(source.target)
        if vacate(gm, home):
            gm.add_submodule(home, layer)
            return home
    return add_module(gm, call.node.name, layer)
