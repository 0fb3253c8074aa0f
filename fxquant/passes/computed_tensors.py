"""Lets a training graph compute tensors of layers from parameters, and stores their values in the layers afterwards."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.fx import GraphModule, Node

from fxquant.graph.constants import ComputedLayer, ComputedValue, Constants, PutBack
from fxquant.graph.edit import erase_unread, vacate
from fxquant.graph.query import COMPUTED_OF, module_of
from fxquant.nn.computed import HOME, InPlaceTensor, WithComputedTensors, with_values, without_tensors
from fxquant.nn.fake_quantize import FakeQuantizedWeight
from fxquant.passes.base import PassContext, graph_pass


@graph_pass(after=("insert_training_fake_quant",), required=True)
def compute_tensors(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Layers whose tensors are computed of parameters are given them; what stood for such a tensor is computed.

    Parameters stay where the user has them, under their names. A weight is rounded after its computation.
    """
    put_back = PutBack(gm)
    read: list[Node] = []
    for node in list(gm.graph.nodes):
        computed = node.meta.pop(COMPUTED_OF, None)
        if isinstance(computed, ComputedValue):
            node.replace_all_uses_with(put_back.value(node, computed), propagate_meta=False)
            read.append(node)
        elif isinstance(computed, ComputedLayer):
            _give(gm, node, {name: put_back.node(source) for name, source in computed.tensors.items()}, computed.home)
    for node in read:
        gm.graph.erase_node(node)
    for path in put_back.replaced:
        vacate(gm, path)
    return gm


def _give(gm: GraphModule, call: Node, tensors: dict[str, Node], home: str) -> None:
    path = str(call.target)
    layer = gm.get_submodule(path)
    if not isinstance(layer, (FakeQuantizedWeight, WithComputedTensors)):
        layer = WithComputedTensors(layer, tensors).train(layer.training)
        gm.set_submodule(path, layer)
    plain = layer.layer if isinstance(layer, WithComputedTensors) else layer
    without_tensors(plain, tensors)
    setattr(plain, HOME, home)
    call.kwargs = {**call.kwargs, **tensors}
    for read in [node for node in gm.graph.nodes if node.op == "get_attr" and node.target.startswith(f"{path}.")]:
        if (name := str(read.target).removeprefix(f"{path}.")) in tensors:  # what a batch norm will multiply by
            read.replace_all_uses_with(tensors[name], propagate_meta=False)
            gm.graph.erase_node(read)


@graph_pass(after=("strip_fake_quant",), required=True)
def fold_tensors(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Layers hold the values that their tensors have now, where ``prepare`` would put them."""
    constants = Constants(gm)
    read = _attributes(gm)
    layers = _given(gm)
    values = {path: constants.value(calls[0].kwargs) for path, calls in layers.items()}
    in_place = {node: constants.value(node) for node in gm.graph.nodes if isinstance(module_of(node), InPlaceTensor)}
    gone: list[Node] = []
    for calls in layers.values():
        gone += [source for call in calls for source in call.all_input_nodes if source in call.kwargs.values()]
        for call in calls:
            call.kwargs = {}
    erase_unread(gm.graph, gone)
    for path, calls in layers.items():
        _hold(gm, path, calls, values[path])
    for node, value in in_place.items():
        if node in gm.graph.nodes:
            _fold(gm, node, value)
    for path in read - _attributes(gm):
        vacate(gm, path)
    return gm


def _attributes(gm: GraphModule) -> set[str]:
    return {str(node.target) for node in gm.graph.nodes if node.op == "get_attr"}


def _given(gm: GraphModule) -> dict[str, list[Node]]:
    """Path of a layer whose tensors are given -> its calls."""
    layers: dict[str, list[Node]] = {}
    for node in gm.graph.nodes:
        module = module_of(node)
        if isinstance(module, WithComputedTensors) or HOME in getattr(module, "__dict__", {}):
            layers.setdefault(str(node.target), []).append(node)
    return layers


def _hold(gm: GraphModule, path: str, calls: Iterable[Node], values: dict[str, Tensor]) -> None:
    layer = with_values(gm.get_submodule(path), values)
    home = vars(layer).pop(HOME)
    gm.set_submodule(path, layer)
    if home and vacate(gm, home):
        gm.add_submodule(home, layer)
        for call in calls:
            call.target = home
        vacate(gm, path)


def _fold(gm: GraphModule, node: Node, value: Tensor) -> None:
    name = node.name.removesuffix("_computation")
    gm.register_buffer(name, value)
    with gm.graph.inserting_before(node):
        buffer = gm.graph.get_attr(name)
    buffer.meta = dict(node.meta)
    sources = node.all_input_nodes
    node.replace_all_uses_with(buffer, propagate_meta=False)
    gm.graph.erase_node(node)
    erase_unread(gm.graph, sources)
