"""Measures the weights of planned units, after batch norms were folded into them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.fx import GraphModule

from fxquant.errors import listing, warn
from fxquant.fake_quantize.base import observer_in
from fxquant.observers.smallest_scale import HINT, WHAT, below_smallest_scale
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.rounding import finite_weight, weighted_nodes
from fxquant.plan.spec import Observed, QParams, TensorRef


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
        warn(WHAT, got=listing(tiny), hint=HINT)
    ctx.plan = replace(ctx.plan, qparams={**ctx.plan.qparams, **found})
    return gm
