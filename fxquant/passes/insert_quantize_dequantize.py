"""The reference form: explicit quantize and dequantize around float operators, weights stored as integers."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from fxquant.graph.edit import add_module, insert_after
from fxquant.graph.query import called_module, value_of
from fxquant.nn.fake_quantized import with_dequantized_weight
from fxquant.nn.quantize import Dequantize, Quantize
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.rounding import insert_call_qparams, rounding_points, weighted_nodes


@graph_pass(after=("fold_conv_bn", "observe_weights"), required=True)
def insert_quantize_dequantize(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``t`` becomes ``dequantize(quantize(t))`` where the integer graph would hold integers."""
    for point in rounding_points(gm, ctx, ctx.plan.qparams):
        qparams = ctx.plan.qparams[point.ref]
        quantize = add_module(gm, f"{point.node.name}_quantize", Quantize(qparams))
        info = value_of(point.node)
        module = Dequantize(qparams, torch.float32 if info is None else info.dtype)
        dequantize = add_module(gm, f"{point.node.name}_dequantize", module)
        integers = insert_after(point.node, quantize, users=point.users)
        insert_after(integers, dequantize, users=tuple(integers.users))
    insert_call_qparams(gm, ctx)
    for node, unit in weighted_nodes(gm, ctx):
        layer = with_dequantized_weight(called_module(node), ctx.plan.qparams[unit.roles["weight"]])
        node.target = add_module(gm, str(node.target), layer, instead_of=(node,))
    return gm
