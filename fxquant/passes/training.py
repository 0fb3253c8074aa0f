"""Puts fake-quantize modules into a graph that trains, and takes them out again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from fxquant.errors import PlanError
from fxquant.fake_quantize.from_policy import fake_quantize_from_policy
from fxquant.graph.edit import add_module, erase_unread, insert_after
from fxquant.graph.query import called_module, module_of, nodes_by_name
from fxquant.graph.recurrent import weight_of
from fxquant.nn.batch_norm import training_factor
from fxquant.nn.training import JoinedRange
from fxquant.nn.weight_forms import is_fake_quantized, with_fake_quantized_weight, without_fake_quantized_weight
from fxquant.passes.base import PassContext, graph_pass, weighted_nodes
from fxquant.passes.idle import drop_restored, follow_training_mode, restore_idle
from fxquant.passes.rounding import inner_home, inner_rounding, insert_call_qparams, rounding_points
from fxquant.plan.spec import Fixed, Handled, Observed, QParamsPolicy, TensorRef


@graph_pass(required=True)
def insert_training_fake_quant(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``t`` becomes ``t_fake_quant(t)`` where qparams are measured or fixed; weights are rounded in their layers.

    One module stands for one qparams, and is called once: an average over calls would mix the ranges of several values.
    What shares the qparams of another value needs no rounding of its own. It is rounded already, or, of the inputs of a
    join, rounded as part of the joined value.
    """
    _refuse_handlers(ctx)
    restore_idle(gm, ctx.plan.idle)
    homes: dict[TensorRef, str] = {}
    qparams = [ref for ref, policy in ctx.plan.policies.items() if _is_fake_quant_of(policy)]
    for point in rounding_points(gm, ctx, qparams):
        made = fake_quantize_from_policy(ctx.plan.policies[point.ref], point.ref.name)
        homes[point.ref] = add_module(gm, f"{point.ref.name}_fake_quant", made)
        insert_after(point.node, homes[point.ref], users=point.users)
    homes |= insert_call_qparams(gm, ctx)
    homes |= _quantize_weights(gm, ctx, homes)
    _watch_joins(gm, ctx)
    for node in gm.graph.nodes:
        follow_training_mode(gm, node)
    ctx.plan = replace(ctx.plan.without_means(), fake_quants=homes)
    return gm


def _is_fake_quant_of(policy: QParamsPolicy) -> bool:
    return isinstance(policy, (Observed, Fixed))


def _quantize_weights(gm: GraphModule, ctx: PassContext, known: Mapping[TensorRef, str]) -> dict[TensorRef, str]:
    """Put layers that round their weight in place of plain ones, with the same parameters; the answer is where.

    A layer that is called several times stays one layer, unless a batch norm after a call makes its weight another.
    """
    calls = weighted_nodes(gm, ctx)
    nodes = nodes_by_name(gm)
    homes: dict[TensorRef, str] = {}
    for node, unit in calls:
        if unit.roles["weight"] in homes:
            continue
        # All calls of a layer share its rounding, unless a batch norm is folded into one of them.
        path = str(node.target)
        same = [(other, its) for other, its in calls if other.target == path]
        everywhere = {other for other in gm.graph.nodes if other.op == "call_module" and other.target == path}
        if any("bn" in its.captures for _, its in same) or {other for other, _ in same} != everywhere:
            same = [(node, unit)]
        # Make the layer that rounds its weight, and let the calls call it.
        module = fake_quantize_from_policy(ctx.plan.policies[unit.roles["weight"]], f"{path}.weight")
        module.make_room(weight_of(called_module(node)))
        axis = ctx.pattern_of(unit).weight_axis
        inner = inner_rounding(unit, ctx, partial(_inside, gm, unit.roles.get("x"), known))
        layer = with_fake_quantized_weight(called_module(node), module, axis, share=True, inner=inner)
        home = add_module(gm, path, layer, instead_of=[other for other, _ in same])
        for other, its in same:
            other.target = home
            homes[its.roles["weight"]] = home
            if inner is not None and its.roles["x"] not in known:
                homes[its.roles["x"]] = inner_home(home)
        if "bn" in unit.captures:
            node.kwargs = {**node.kwargs, "factor": _factor(node, nodes[unit.captures["bn"]])}
    return homes


def _inside(gm: GraphModule, ref: TensorRef | None, known: Mapping[TensorRef, str], policy: QParamsPolicy) -> nn.Module:
    """Make what rounds values inside of a layer: that of its result, where something else reads this quantized."""
    assert ref is not None  # so has each unit with such a layer
    return gm.get_submodule(known[ref]) if ref in known else fake_quantize_from_policy(policy, ref.name)


def _watch_joins(gm: GraphModule, ctx: PassContext) -> None:
    """Keep the ranges of what is joined, which needs no qparams: ``convert`` warns of those that differ much."""
    nodes = nodes_by_name(gm)
    readers: dict[Node, list[Node]] = {}
    for join in (nodes[unit.root] for unit in ctx.joins()):
        for value in join.all_input_nodes:
            readers.setdefault(value, []).append(join)
    for value, joins in readers.items():
        insert_after(value, add_module(gm, f"{value.name}_joined_range", JoinedRange()), users=tuple(joins))


def _factor(conv: Node, bn: Node) -> Node:
    """Return what the batch norm will multiply the weight by, in the graph: its parameters get gradients by it."""
    module, graph = called_module(bn), conv.graph
    with graph.inserting_before(conv):
        gamma = None if module.weight is None else graph.get_attr(f"{bn.target}.weight")
        running_var = graph.get_attr(f"{bn.target}.running_var")
        factor = graph.call_function(training_factor, (gamma, running_var, module.eps))
    factor.name = f"{bn.name}_factor"
    return factor


def _refuse_handlers(ctx: PassContext) -> None:
    if handled := [ref.name for ref, policy in ctx.plan.policies.items() if isinstance(policy, Handled)]:
        raise PlanError(
            "a pattern with a handler class cannot be trained: nobody but its handler knows the qparams",
            got=", ".join(handled),
            hint="set_module_name(name, None) keeps it in float; a pattern without a handler trains",
        )


@graph_pass(required=True)
def strip_fake_quant(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``t_fake_quant(t)`` becomes ``t`` again, layers get their plain weight back; parameters stay as trained."""
    homes = {path for ref, path in ctx.plan.fake_quants.items() if ref.kind != "parameter"}
    for node in list(gm.graph.nodes):
        if node.op == "call_module" and (node.target in homes or isinstance(module_of(node), JoinedRange)):
            value = node.args[0]
            assert isinstance(value, Node)  # the pass that inserted it gave it one
            node.replace_all_uses_with(value, propagate_meta=False)
            gm.graph.erase_node(node)
    drop_restored(gm, ctx.plan.idle)
    for ref, path in ctx.plan.fake_quants.items():
        if ref.kind == "parameter":
            _plain(gm, path)
    return gm


def _plain(gm: GraphModule, path: str) -> None:
    layer: Any = gm.get_submodule(path)
    if not is_fake_quantized(layer):
        return  # two weights may share a layer
    gm.set_submodule(path, without_fake_quantized_weight(layer))
    for node in gm.graph.nodes:
        if node.op == "call_module" and node.target == path and "factor" in node.kwargs:
            factor = node.kwargs["factor"]
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "factor"}
            assert isinstance(factor, Node)
            erase_unread(gm.graph, (factor,))
