"""Folds batch norms into the weight and the bias of the layer before them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.graph.edit import add_module, replace_node
from fxquant.graph.query import VALUE, called_module, nodes_by_name
from fxquant.nn.folding import along_outputs, batch_norm_factor
from fxquant.passes.base import PassContext, graph_pass
from fxquant.patterns.pattern import Pattern
from fxquant.plan.quant_plan import QuantUnit


@graph_pass(keeps_values=True, required=True)
def fold_conv_bn(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``bn(layer(x))`` becomes one layer, under the name of the batch norm's node."""
    ctx.plan = replace(ctx.plan, units=tuple(_fold(gm, unit, ctx.pattern_of(unit)) for unit in ctx.plan.units))
    return gm


def _fold(gm: GraphModule, unit: QuantUnit, pattern: Pattern) -> QuantUnit:
    """Fold the unit's batch norm (capture ``bn``) into its layer, and return the unit without it.

    Units without a batch norm, or with one that follows no layer, come back as they are.
    """
    layer = pattern.weight_capture
    if "bn" not in unit.captures or layer is None:
        return unit
    nodes = nodes_by_name(gm)
    conv_node, bn_node = nodes[unit.captures[layer]], nodes[unit.captures["bn"]]
    folded = fold(called_module(conv_node), called_module(bn_node), pattern.weight_axis)
    # A new module, since a convolution that is called elsewhere too keeps its meaning there.
    target = add_module(gm, str(conv_node.target), folded, instead_of=(conv_node,))
    with gm.graph.inserting_before(bn_node):
        node = gm.graph.call_module(target, conv_node.args, conv_node.kwargs)
    node.meta = {**conv_node.meta, VALUE: bn_node.meta.get(VALUE)}
    replace_node(bn_node, node)
    gm.graph.erase_node(conv_node)
    captures = {name: value for name, value in unit.captures.items() if name != "bn"}
    return replace(
        unit,
        nodes=tuple(name for name in unit.nodes if name != unit.captures[layer]),
        captures={**captures, layer: unit.captures["bn"]},
    )


def fold(conv: Any, bn: Any, axis: int = 0) -> nn.Module:
    """Return one convolution or linear layer that computes ``bn(conv(x))`` with the running statistics.

    ``weight' = weight * f`` along ``axis``, in a transposed convolution group by group, and
    ``bias' = (bias - running_mean) * f + beta`` with ``f = gamma / sqrt(running_var + eps)``; ``f`` and the bias are
    computed in float64.

    Source:
        Jacob et al., arXiv:1712.05877, section 3.2.
    """
    with torch.no_grad():
        factor = batch_norm_factor(bn.weight, bn.running_var, bn.eps)
        shift: Tensor = -bn.running_mean.double()
        if conv.bias is not None:
            shift = shift + conv.bias.double()
        bias = shift * factor + (bn.bias.double() if bn.bias is not None else 0.0)
        # along_outputs: the factor of each output channel, in a shape that multiplies the weight.
        weight = conv.weight * along_outputs(factor, conv, axis).to(conv.weight.dtype)
        folded = copy.copy(conv)  # hooks, training flag and hyperparameters as they are
        folded._parameters = dict(conv._parameters)
        folded.weight = nn.Parameter(weight, requires_grad=conv.weight.requires_grad)
        folded.bias = nn.Parameter(bias.to(conv.weight.dtype), requires_grad=conv.weight.requires_grad)
    return folded
