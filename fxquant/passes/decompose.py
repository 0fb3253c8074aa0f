"""Takes operators apart whose parts can be quantized: attention, einsum, addmm, gated linear units."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from fxquant.graph.constants import Constants
from fxquant.graph.decompositions.attention import LAYERS, emit_multihead, emit_product, picked_item, read_call
from fxquant.graph.decompositions.composites import COMPOSITES
from fxquant.graph.edit import Emitter, keep_children_only, replace_node, substitute
from fxquant.graph.query import DECOMPOSED_FROM, REASON, canonical_type, module_of, module_path, reason_of, value_of
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.qconfig_rules import own_targets, quantizes_part, rules_of_calls
from fxquant.plan.qconfig import Rule

WITHOUT_SHAPES = (
    "attention becomes linear layers and products by the shapes of its inputs, and only example inputs tell the shapes"
)
"""Why an ``nn.MultiheadAttention`` is float after ``prepare(model, None)``."""


@graph_pass(after=("normalize",), keeps_values=True)
def decompose_attention(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Write ``nn.MultiheadAttention`` and ``F.scaled_dot_product_attention`` as linear layers, products and softmax.

    The layers ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj`` lie below the path of the module. A rule of the
    configuration that names the module decides for all of them, unless a rule names a layer. What the configuration
    leaves in float, or where nothing inside could be quantized, stays one operator, which is faster.
    """
    if not ctx.has_example:
        for node in gm.graph.nodes:
            if _is_multihead(node):
                node.meta.setdefault(REASON, WITHOUT_SHAPES)
        return gm
    rules = rules_of_calls(gm, ctx.config)
    multihead = [node for node in gm.graph.nodes if _is_multihead(node)]
    for node in multihead:
        _take_multihead_apart(gm, node, rules[node], ctx)
    for path in dict.fromkeys(str(node.target) for node in multihead if not ctx.trains):
        keep_children_only(gm, path)
    rules = rules_of_calls(gm, ctx.config)
    for node in [node for node in gm.graph.nodes if node.target is F.scaled_dot_product_attention]:
        path, rule = node.meta.get(DECOMPOSED_FROM) or (module_path(node)[0], rules[node])
        if reason_of(node) is None and quantizes_part(torch.matmul, path, (path, rule), ctx):
            _take_product_apart(gm, node, (path, rule))
    return gm


def _is_multihead(node: Node) -> bool:
    module = module_of(node)
    return module is not None and canonical_type(module) is nn.MultiheadAttention


def _take_multihead_apart(gm: GraphModule, node: Node, rule: Rule, ctx: PassContext) -> None:
    path = str(node.target)
    whole = (path, rule)
    of_layers = any(quantizes_part(nn.Linear, f"{path}.{name}", whole, ctx) for name in LAYERS)
    of_products = quantizes_part(torch.matmul, path, whole, ctx)
    if reason_of(node) is not None or not (of_layers or of_products):
        return
    call = read_call(node)
    if isinstance(call, str):
        node.meta[REASON] = call
        return
    parts = emit_multihead(
        call, Emitter(gm, node, {DECOMPOSED_FROM: whole}), path, whole_product=not of_products, trains=ctx.trains
    )
    for user in list(node.users):
        item = picked_item(user)
        if item is None:
            substitute(user, node, parts)
            continue
        for reader in list(user.users):
            substitute(reader, user, parts[item])
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)


def _take_product_apart(gm: GraphModule, node: Node, whole: tuple[str, Rule]) -> None:
    new = emit_product(node, Emitter(gm, node, {DECOMPOSED_FROM: whole}))
    if isinstance(new, str):
        node.meta[REASON] = new
        return
    replace_node(node, new)


@graph_pass(after=("normalize",), keeps_values=True)
def decompose_composites(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Write ``torch.einsum`` as a matrix product, ``torch.addmm`` as one and a sum, ``F.glu`` as gate and product.

    Back ends name others, whose parts they run on integers: SiLU as sigmoid and product, say.

    A rule of the configuration that names the operator decides for its parts. What the configuration leaves in float,
    what a user's own pattern names, and what is made of constants alone stays one operator.
    """
    if not ctx.has_example:
        return gm
    theirs, rules, constants = own_targets(ctx), rules_of_calls(gm, ctx.config), Constants(gm)
    composites = {**COMPOSITES, **ctx.backend.composites}
    for node in list(gm.graph.nodes):
        composite = composites.get(node.target) if node.op == "call_function" else None
        if composite is None or node.target in theirs or reason_of(node) or not _is_known(node):
            continue
        whole = (module_path(node)[0], rules[node])
        if not any(quantizes_part(part, whole[0], whole, ctx) for part in composite.parts):
            continue
        if constants.holds(node):
            continue
        new = composite.emit(Emitter(gm, node, {DECOMPOSED_FROM: whole}), node, constants.holds)
        if isinstance(new, str):
            node.meta[REASON] = new
        elif new in node.all_input_nodes:
            node.replace_all_uses_with(new)
            gm.graph.erase_node(node)
        else:
            replace_node(node, new)
    return gm


def _is_known(node: Node) -> bool:
    """Tell whether the values of a call and of all its arguments were seen, and are no complex numbers."""
    infos = [value_of(node), *map(value_of, node.all_input_nodes)]
    return all(info is not None and info.dtype.is_floating_point for info in infos)
