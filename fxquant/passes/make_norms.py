"""Makes one layer of products and sums with one constant per channel: a norm, which is folded as others are."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from fxquant.graph.affine import Affine, ChannelAffine, affines, per_channel, tensors_of_affine
from fxquant.graph.constants import Aside, ComputedLayer, Constants
from fxquant.graph.edit import add_module, erase_unread, retarget, vacate
from fxquant.graph.query import CALLED, COMPUTED_OF, INPLACE, WRITTEN, qualified_name
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.configure import decide, own_targets


@graph_pass(after=("normalize", "decompose_compounds", "functional_to_module"), keeps_values=True)
def make_norms(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``conv(x) * self.scale + self.shift`` becomes a ``ChannelAffine`` behind the convolution, named as the sum.

    So does ``FrozenBatchNorm2d`` of torchvision and others: what it computes of its buffers is constant. For training,
    parameters and buffers stay where they are, and what is computed of them is computed in each call.
    """
    found = list(affines(gm, own_targets(ctx)))
    if not found:
        return gm
    decisions, constants, aside = decide(gm, ctx.config), Constants(gm), Aside()
    read = _attributes(gm)
    for each in found:
        if any(decisions[step.node].qconfig is None for step in each.steps):
            continue
        tensors = tensors_of_affine(each, constants)
        if tensors is None:
            continue
        node = each.root
        node.meta |= {CALLED: (qualified_name(node), None), WRITTEN: node.target}
        node.meta.pop(INPLACE, None)
        target = add_module(gm, node.name, ChannelAffine(tensors, each.behind, each.rank).eval())
        if ctx.trains:
            node.meta[COMPUTED_OF] = ComputedLayer(_computed(each, aside), "")
        retarget(node, "call_module", target, (each.x,))
        steps = [step.node for step in each.steps[:-1]]
        erase_unread(gm.graph, (*reversed(steps), *(step.constant for step in each.steps)))
    for path in read - _attributes(gm) if not ctx.trains else ():
        vacate(gm, path)
    return gm


def _attributes(gm: GraphModule) -> set[str]:
    return {str(node.target) for node in gm.graph.nodes if node.op == "get_attr"}


def _computed(found: Affine, aside: Aside) -> dict[str, Node]:
    """Every tensor of the layer, as nodes of the graph beside compute it."""
    call, made = aside.graph.call_function, dict[str, Node]()
    for step in found.steps:
        value = call(per_channel, (aside.copy(step.constant), found.channels))
        made[step.name] = call(torch.neg, (value,)) if step.negated else value
    some = next(iter(made.values()))
    made.setdefault("running_mean", call(torch.zeros_like, (some,)))
    made["running_var"] = call(torch.ones_like, (some,))
    return made
