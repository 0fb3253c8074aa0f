"""The way back from training: the float graph that was prepared, and the grids that it was trained on."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from fxquant.graph.edit import erase_unread
from fxquant.graph.query import module_of
from fxquant.nn.fake_quantized import FakeQuantizedWeight, without_fake_quantized_weight
from fxquant.nn.joined_range import JoinedRange
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.idle import drop_restored


@graph_pass(required=True)
def strip_fake_quant(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``t_fake_quant(t)`` becomes ``t`` again, layers get their plain weight back; parameters stay as trained."""
    homes = {path for ref, path in ctx.plan.fake_quants.items() if ref.kind != "parameter"}
    for node in list(gm.graph.nodes):
        if node.op == "call_module" and (node.target in homes or isinstance(module_of(node), JoinedRange)):
            value = node.args[0]
            assert isinstance(value, Node)  # the pass that inserted it gave it one
            node.replace_all_uses_with(value, propagate_meta=False)
            gm.graph.erase_node(node)
    drop_restored(gm, ctx.plan.idle)
    for ref, path in ctx.plan.fake_quants.items():
        if ref.kind == "parameter":
            _plain(gm, path)
    return gm


def _plain(gm: GraphModule, path: str) -> None:
    layer = gm.get_submodule(path)
    if not isinstance(layer, FakeQuantizedWeight):
        return  # two weights may share a layer
    gm.set_submodule(path, without_fake_quantized_weight(layer))
    for node in gm.graph.nodes:
        if node.op == "call_module" and node.target == path and "factor" in node.kwargs:
            factor = node.kwargs["factor"]
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "factor"}
            assert isinstance(factor, Node)
            erase_unread(gm.graph, (factor,))
