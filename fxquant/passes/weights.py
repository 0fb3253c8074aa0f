"""Prepares the weight of each unit: folds the batch norm in, observes it, and rounds it where rounding was learned."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxquant.errors import listing, warn
from fxquant.fake_quantize.adaround import OwnIntegers
from fxquant.fake_quantize.base import disable_observer, observer_in
from fxquant.graph.edit import add_module, replace_node
from fxquant.graph.query import VALUE, called_module, nodes_by_name
from fxquant.nn.batch_norm import along_outputs, batch_norm_factor
from fxquant.nn.fake_quantize import with_fake_quantized_weight
from fxquant.observers.qparams import SCALE_TOO_LARGE, SCALE_TOO_LARGE_HINT, below_smallest_scale
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.rounding import finite_weight, rounded_weight, weighted_nodes
from fxquant.patterns.pattern import Pattern
from fxquant.plan.quant_plan import QuantUnit
from fxquant.plan.spec import Observed, QParams, TensorRef


@graph_pass(keeps_values=True, required=True)
def fold_conv_bn(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``bn(conv(x))`` becomes one convolution, under the name of the batch norm's node."""
    ctx.plan = replace(ctx.plan, units=tuple(_fold(gm, unit, ctx.pattern_of(unit)) for unit in ctx.plan.units))
    return gm


def _fold(gm: GraphModule, unit: QuantUnit, pattern: Pattern) -> QuantUnit:
    """A batch norm is captured as ``bn``; it follows the operator that holds the unit's weight, if there is one."""
    layer = pattern.weight
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
    """One convolution or linear layer that computes ``bn(conv(x))`` with the running statistics.

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
        weight = conv.weight * along_outputs(factor, conv, axis).to(conv.weight.dtype)
        folded = copy.copy(conv)  # hooks, training flag and hyperparameters as they are
        folded._parameters = dict(conv._parameters)
        folded.weight = nn.Parameter(weight, requires_grad=conv.weight.requires_grad)
        folded.bias = nn.Parameter(bias.to(conv.weight.dtype), requires_grad=conv.weight.requires_grad)
    return folded


@graph_pass(after=("fold_conv_bn",), keeps_values=True, required=True)
def observe_weights(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Choose scale and zero point of every planned weight that has none yet."""
    found: dict[TensorRef, QParams] = {}
    tiny: list[str] = []
    for node, unit in weighted_nodes(gm, ctx):
        ref = unit.roles["weight"]
        if ref in ctx.plan.qparams:
            continue
        if unit.root in ctx.weight_layers:
            measured: Any = ctx.weight_layers[unit.root].weight_fake_quant
        else:
            policy = ctx.plan.policies[ref]
            assert isinstance(policy, Observed)  # the annotate pass gives weights no other policy
            weight = finite_weight(node)
            measured = policy.observer().to(weight.device)
            measured(weight)
            if lost := below_smallest_scale(observer_in(measured)):
                tiny.append(f"{node.target}.weight: {lost.text}")
        found[ref] = measured.qparams()
    if tiny:
        warn(SCALE_TOO_LARGE, got=listing(tiny), hint=SCALE_TOO_LARGE_HINT)
    ctx.plan = replace(ctx.plan, qparams={**ctx.plan.qparams, **found})
    return gm


@graph_pass(after=("fold_conv_bn", "observe_weights"), required=True)
def apply_learned_rounding(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Replace a weight by the values that its learned rounding chose: rounding to nearest then keeps them."""
    for node, unit in weighted_nodes(gm, ctx):
        if unit.root not in ctx.weight_layers:
            continue
        weight, values = called_module(node).weight, rounded_weight(node, unit, ctx)
        layer = copy.copy(called_module(node))  # hooks and hyperparameters as they are; another call keeps its weight
        layer._parameters = {**layer._parameters, "weight": nn.Parameter(values.to(weight.dtype))}
        node.target = add_module(gm, str(node.target), layer, instead_of=(node,))
    return gm


def layers_of_own_integers(gm: GraphModule, ctx: PassContext) -> nn.ModuleDict:
    """A layer for each planned weight whose fake-quantize has ``integers``, observed, under the root of its unit.

    Args:
        gm: The float graph, batch norms folded in. Not changed.
        ctx: Its plan.
    """
    layers = nn.ModuleDict()
    for node, unit in weighted_nodes(gm, ctx):
        policy = ctx.plan.policies[unit.roles["weight"]]
        assert isinstance(policy, Observed)  # the annotate pass gives weights no other policy
        rounding = policy.observer()
        if isinstance(rounding, OwnIntegers):
            # Past add_module, which refuses the names of attributes.
            layers._modules[unit.root] = _layer_with(rounding, node)
    return layers


def _layer_with(rounding: Any, node: Node) -> nn.Module:
    weight = finite_weight(node)
    rounding.to(weight.device)
    rounding(weight)
    disable_observer(rounding)
    rounding(weight)  # AdaRound begins to learn at the first call after that
    return with_fake_quantized_weight(called_module(node), rounding)
