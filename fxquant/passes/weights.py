"""Observes the weight of each unit, and rounds it where its rounding was learned."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxquant.errors import CalibrationError, listing, warn
from fxquant.fake_quantize.adaround import LearnedRounding
from fxquant.fake_quantize.base import disable_observer, observer_in
from fxquant.graph.edit import add_module
from fxquant.graph.query import called_module
from fxquant.graph.recurrent import is_recurrent, weight_of, with_matrices
from fxquant.nn.weight import all_finite, count_not_finite
from fxquant.nn.weight_forms import with_fake_quantized_weight
from fxquant.observers.qparams import VALUES_TOO_SMALL, VALUES_TOO_SMALL_HINT, below_smallest_scale
from fxquant.passes.base import PassContext, graph_pass, weighted_nodes
from fxquant.passes.rounding import rounded_weight
from fxquant.plan.spec import Observed, QParams, TensorRef


@graph_pass(after=("fold_conv_bn",), keeps_values=True, required=True)
def observe_weights(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Choose scale and zero point of every planned weight that has none yet."""
    found: dict[TensorRef, QParams] = {}
    too_small: list[str] = []
    for node, unit in weighted_nodes(gm, ctx):
        ref = unit.roles["weight"]
        if ref in ctx.plan.qparams:
            continue
        if unit.root in ctx.weight_layers:
            observer: Any = ctx.weight_layers[unit.root].weight_fake_quant
        else:
            policy = ctx.plan.policies[ref]
            assert isinstance(policy, Observed)  # the annotate pass gives weights no other policy
            weight = finite_weight(node)
            observer = policy.observer().to(weight.device)
            observer(weight)
            if below := below_smallest_scale(observer_in(observer)):
                too_small.append(f"{node.target}.weight: {below.text}")
        found[ref] = observer.qparams()
    if too_small:
        warn(VALUES_TOO_SMALL, got=listing(too_small), hint=VALUES_TOO_SMALL_HINT)
    ctx.plan = replace(ctx.plan, qparams={**ctx.plan.qparams, **found})
    return gm


@graph_pass(after=("fold_conv_bn", "observe_weights"), required=True)
def apply_learned_rounding(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Replace a weight by the values that its learned rounding chose: rounding to nearest then keeps them."""
    for node, unit in weighted_nodes(gm, ctx):
        if unit.root not in ctx.weight_layers:
            continue
        weight, values = weight_of(called_module(node)), rounded_weight(node, unit, ctx)
        layer = copy.copy(called_module(node))  # hooks and hyperparameters as they are; another call keeps its weight
        if is_recurrent(layer):
            with_matrices(layer, values.to(weight.dtype))
        else:
            layer._parameters = {**layer._parameters, "weight": nn.Parameter(values.to(weight.dtype))}
        node.target = add_module(gm, str(node.target), layer, instead_of=(node,))
    return gm


def layers_with_learned_rounding(gm: GraphModule, ctx: PassContext) -> nn.ModuleDict:
    """Make a layer for each planned weight whose fake-quantize has ``integers``, observed, under the root of its unit.

    Args:
        gm: The float graph, batch norms folded in. Not changed.
        ctx: Its plan.
    """
    layers = nn.ModuleDict()
    for node, unit in weighted_nodes(gm, ctx):
        policy = ctx.plan.policies[unit.roles["weight"]]
        assert isinstance(policy, Observed)  # the annotate pass gives weights no other policy
        rounding = policy.observer()
        if isinstance(rounding, LearnedRounding):
            # Not by add_module, which refuses the names of attributes.
            layers._modules[unit.root] = _layer_with(rounding, node)
    return layers


def _layer_with(rounding: Any, node: Node) -> nn.Module:
    weight = finite_weight(node)
    rounding.to(weight.device)
    rounding(weight)
    disable_observer(rounding)
    rounding(weight)  # AdaRound begins to learn at the first call after that
    return with_fake_quantized_weight(called_module(node), rounding)


def finite_weight(node: Node) -> Tensor:
    """Return the weight of the layer that a node calls, detached.

    Raises:
        CalibrationError: some of it is inf or NaN.
    """
    weight = weight_of(called_module(node)).detach()
    if not all_finite(weight):
        raise CalibrationError(
            "a weight holds values that are not finite",
            at=node,
            got=count_not_finite(weight),
            expected="finite weights; with a batch norm folded in, finite statistics too",
            hint=f"look at {node.target}.weight and at the batch norm behind it",
        )
    return weight
