"""Takes out conversions that cancel: integers that become floats only to become integers again."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from fxquant.graph.edit import add_module
from fxquant.graph.query import module_of
from fxquant.nn.quantize import Dequantize, Quantize, Requantize
from fxquant.passes.base import PassContext, graph_pass


@graph_pass(after=("lower_units",), keeps_values=True)
def merge_requantize(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``quantize(dequantize(x))`` becomes ``x`` on the same grid, and one table look-up on another."""
    for node in list(gm.graph.nodes):
        quantize = module_of(node)
        if not isinstance(quantize, Quantize) or not isinstance(node.args[0], Node):
            continue
        dequantize = module_of(node.args[0])
        if not isinstance(dequantize, Dequantize):
            continue
        source, old, new = node.args[0].args[0], dequantize.qparams("x"), quantize.qparams("y")
        assert isinstance(source, Node)  # a dequantize module is called on a value
        if old.same_qparams(new):
            node.replace_all_uses_with(source)
        else:
            node.target = add_module(gm, f"{source.name}_requantize", Requantize(old, new))
            node.args = (source,)
    return gm
