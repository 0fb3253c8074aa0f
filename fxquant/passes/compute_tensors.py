"""Puts into a training graph what computes the tensors of layers, where passes so far saw their values."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from fxquant.graph.constants import ComputedLayer, ComputedValue, PutBack
from fxquant.graph.edit import vacate
from fxquant.graph.query import COMPUTED_OF
from fxquant.nn.computed import HOME, WithComputedTensors, without_tensors
from fxquant.nn.fake_quantized import FakeQuantizedWeight
from fxquant.passes.base import PassContext, graph_pass


@graph_pass(after=("insert_training_fake_quant",), required=True)
def compute_tensors(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Layers whose tensors are computed of parameters are given them; what stood for such a tensor is computed.

    Parameters stay where the user has them, under their names. A weight is rounded behind its computation.
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
