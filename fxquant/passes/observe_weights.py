"""Measures the weights of planned units, after batch norms were folded into them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import GraphModule

from fxquant.errors import CalibrationError
from fxquant.graph.query import called_module, nodes_by_name
from fxquant.nn.weight import all_finite
from fxquant.passes.base import PassContext, graph_pass
from fxquant.spec import Observed, QParams, TensorRef


@graph_pass(after=("fold_conv_bn",), keeps_values=True, required=True)
def observe_weights(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Choose scale and zero point of every planned weight that has none yet."""
    patterns = {pattern.name: pattern for pattern in ctx.patterns}
    nodes = nodes_by_name(gm)
    found: dict[TensorRef, QParams] = {}
    for unit in ctx.plan.units:
        ref = unit.roles.get("weight")
        if ref is None or ref in ctx.plan.qparams:
            continue
        policy, node = ctx.plan.policies[ref], nodes[unit.captures[patterns[unit.pattern].weight or ""]]
        assert isinstance(policy, Observed)  # the annotate pass gives weights no other policy
        weight: Tensor = called_module(node).weight.detach()
        if not all_finite(weight):
            raise CalibrationError(
                "a weight holds values that are not finite",
                at=node,
                got=f"{int((~torch.isfinite(weight)).sum())} of {weight.numel()} values are inf or NaN",
                expected="finite weights; with a batch norm folded in, finite statistics too",
                hint=f"look at {node.target}.weight and at the batch norm behind it",
            )
        observer = policy.observer()
        observer(weight)
        found[ref] = observer.qparams()
    ctx.plan = replace(ctx.plan, qparams={**ctx.plan.qparams, **found})
    return gm
