"""Puts biases on the integers that runtimes add them as."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.errors import LoweringError
from fxquant.graph.edit import add_module
from fxquant.graph.query import called_module
from fxquant.passes.base import PassContext, graph_pass, weighted_nodes
from fxquant.plan.spec import QParams

LARGEST_BIAS = 2**30
"""Leaves as much room for the products in an int32 sum."""


@graph_pass(after=("fold_conv_bn", "observe_weights", "correct_bias", "share_join_qparams"))
def round_biases(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Make each bias a whole multiple of the scale of its products, for back ends that keep it as int32.

    ``bias' = round(bias / (s_x * s_w)) * (s_x * s_w)``. Where that does not fit, as in channels whose weights are next
    to nothing, the scale of the weights of the channel becomes as large as it takes.
    """
    if ctx.backend.bias != "int32":
        return gm
    for node, unit in weighted_nodes(gm, ctx):
        layer: Any = called_module(node)
        x, ref = ctx.plan.qparams.get(unit.roles["x"]) if "x" in unit.inputs else None, unit.roles["weight"]
        weight = ctx.plan.qparams[ref]
        if x is None or layer.bias is None or not bool(torch.isfinite(x.scale)) or weight.scheme.group_size is not None:
            continue
        fitting = with_room_for(layer.bias.detach(), x, weight)
        if unit.root in ctx.weight_layers and not torch.equal(fitting.scale, weight.scale):
            raise LoweringError(
                "a bias does not fit int32",
                at=node,
                got=f"up to {float((layer.bias.detach() / (x.scale * weight.scale)).abs().max()):.3g} steps",
                expected=f"at most {LARGEST_BIAS:,}",
                hint="its rounding was learned on these scales; leave this layer to the default rounding, or in float",
            )
        ctx.plan = replace(ctx.plan, qparams={**ctx.plan.qparams, ref: fitting})
        new: Any = copy.copy(layer)  # hooks and hyperparameters as they are; another call keeps its bias
        bias = rounded_bias(layer.bias.detach(), x, fitting)
        new._parameters = {**layer._parameters, "bias": nn.Parameter(bias, layer.bias.requires_grad)}
        node.target = add_module(gm, str(node.target), new, instead_of=(node,))
    return gm


def with_room_for(bias: Tensor, x: QParams, weight: QParams) -> QParams:
    """Return the qparams of a weight with scales that are large enough for the bias to be int32.

    Args:
        bias: [C_out].
        x: Of the input, per tensor.
        weight: Per tensor, or per output channel.
    """
    needed = bias.double().abs() / LARGEST_BIAS / x.scale.double()
    needed = needed.max().reshape(1) if weight.scheme.axis is None else needed
    if weight.scheme.power_of_two:
        needed = torch.exp2(needed.log2().ceil())
    larger = torch.maximum(weight.scale, needed.to(weight.scale))
    return weight if torch.equal(larger, weight.scale) else replace(weight, scale=larger)


def rounded_bias(bias: Tensor, x: QParams, weight: QParams) -> Tensor:
    """Round a bias to the nearest multiple of ``s_x * s_w``; of its own dtype."""
    scale = x.scale * weight.scale
    steps = (bias.double() / scale.double()).round()
    return (steps.float() * scale).to(bias.dtype)
