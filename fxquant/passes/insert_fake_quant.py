"""Simulates the planned qparams in float: by fake-quantize modules, or by explicit quantize and dequantize."""

from __future__ import annotations

import copy

import torch
from torch.fx import GraphModule

from fxquant.fake_quantize.adaround import OwnIntegersFakeQuantize
from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.edit import add_module, insert_after
from fxquant.graph.query import called_module, value_of
from fxquant.nn.quantize import Dequantize, Quantize
from fxquant.nn.weight import each_channel_is_a_group
from fxquant.nn.weight_forms import with_dequantized_weight, with_fake_quantized_weight
from fxquant.passes.base import PassContext, graph_pass, weighted_nodes
from fxquant.passes.rounding import inner_rounding, insert_call_qparams, rounding_points


@graph_pass(after=("fold_conv_bn", "observe_weights"), required=True)
def insert_fake_quant(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``t`` becomes ``t_fake_quant(t)``; a weight goes through the ``weight_fake_quant`` of its module."""
    for point in rounding_points(gm, ctx, ctx.plan.qparams):
        module = StaticFakeQuantize(ctx.plan.qparams[point.ref])
        target = add_module(gm, f"{point.node.name}_fake_quant", module)
        insert_after(point.node, target, users=point.users)
    insert_call_qparams(gm, ctx)
    for node, unit in weighted_nodes(gm, ctx):
        own = ctx.weight_layers.get(unit.root)
        rounding = None if own is None else OwnIntegersFakeQuantize(copy.deepcopy(own.weight_fake_quant))
        qparams = ctx.plan.qparams[unit.roles["weight"]]
        inner = inner_rounding(unit, ctx)
        plain, rounds = called_module(node), qparams if rounding is None else rounding
        axis = ctx.pattern_of(unit).weight_axis
        if axis and each_channel_is_a_group(plain):
            axis = 0  # as for the scales: dimension 1 of a depthwise transposed weight has one entry
        layer = with_fake_quantized_weight(plain, rounds, axis, inner=inner)
        node.target = add_module(gm, str(node.target), layer, instead_of=(node,))
    return gm


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
        qparams = ctx.plan.qparams[unit.roles["weight"]]
        layer = with_dequantized_weight(called_module(node), qparams, inner_rounding(unit, ctx))
        node.target = add_module(gm, str(node.target), layer, instead_of=(node,))
    return gm
