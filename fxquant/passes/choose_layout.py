"""Chooses the memory layout of integers: channels last, as the convolutions and pools want it."""

from __future__ import annotations

from torch.fx import GraphModule

from fxquant.graph.query import module_of, value_of
from fxquant.nn.quantize import Quantize
from fxquant.passes.base import PassContext, graph_pass

IMAGE_RANK = 4


@graph_pass(after=("lower_units",), keeps_values=True)
def choose_layout(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Images become channels-last integers in the step that quantizes them."""
    for node in gm.graph.nodes:
        module, info = module_of(node), value_of(node)
        if isinstance(module, Quantize) and info is not None and len(info.shape) == IMAGE_RANK:
            module.channels_last = True
    return gm
