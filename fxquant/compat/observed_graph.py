"""Puts observers into a graph, as children ``activation_post_process_0``, ``_1``, ...."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from fxquant.compat.foreign import ShowsInner
from fxquant.graph.edit import insert_after
from fxquant.graph.query import VALUE
from fxquant.nn.simulated_recurrent import values_inside
from fxquant.observers.fixed import FixedQParamsObserver
from fxquant.passes.base import PassContext, graph_pass
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Fixed, Observed, QParamsPolicy, SharedWith, TensorRef

PREFIX = "activation_post_process_"


@graph_pass(required=True)
def insert_observers(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``t`` becomes ``activation_post_process_0(t)`` where it is measured, or has fixed qparams.

    They are counted as torch.ao does: of each operator, first the values that it reads, then the one that it makes.
    A value that has the qparams of another one has its observer, too, under another name.
    """
    homes: dict[TensorRef, str] = {}
    modules: dict[TensorRef, nn.Module] = {}
    for node in in_order_of_operators(gm, ctx.plan):
        ref = TensorRef(node.name)
        path = free_path(gm, len(homes))
        owner = ctx.plan.qparams_owner(ref)
        if owner not in modules:
            modules[owner] = observer_from_policy(ctx.plan.policies[owner])
        gm.add_submodule(path, modules[owner])
        homes[ref] = path
        insert_after(node, path, users=tuple(node.users))
    for node in [node for node in gm.graph.nodes if node.name in ctx.plan.rounding_inside()]:
        homes[TensorRef(node.name)] = _watch_inside(gm, node, ctx.plan, len(homes))
    ctx.plan = replace(ctx.plan, fake_quants=homes)
    return gm


class InsideObserver(ShowsInner):
    """Shows an observer all that a recurrent layer multiplies: its inputs, and the hidden states of each step.

    Args:
        observer: It has the child's name ``inner``.
        layer: The float layer, which is registered where the model has it, and not here.
    """

    def __init__(self, observer: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.inner = observer
        self._layer = (layer,)

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Measure a call of the layer, and return its input."""
        with torch.no_grad():
            self.inner(values_inside(self._layer[0], input, hx))
        return input


def _watch_inside(gm: GraphModule, node: Node, plan: QuantPlan, start: int) -> str:
    """Put what measures values inside of a recurrent layer in front of its call."""
    observer = observer_from_policy(plan.policies[plan.qparams_owner(TensorRef(node.name))])
    path = free_path(gm, start)
    gm.add_submodule(path, InsideObserver(observer, gm.get_submodule(str(node.target))).train(gm.training))
    with gm.graph.inserting_before(node):
        call = gm.graph.call_module(path, node.args, node.kwargs)
    call.meta = dict(node.all_input_nodes[0].meta)
    node.args = (call, *node.args[1:])
    return path


def in_order_of_operators(gm: GraphModule, plan: QuantPlan) -> list[Node]:
    """Return the nodes whose values have qparams of their own, in the order in which torch.ao meets them."""
    own = {
        ref.name
        for ref, policy in plan.policies.items()
        if ref.kind == "activation"
        and isinstance(policy, (Observed, Fixed, SharedWith))
        and isinstance(plan.policies[plan.qparams_owner(ref)], (Observed, Fixed))
        and plan.qparams_factor(ref) == 1
    }
    found: dict[Node, None] = {}
    own -= {node.name for node in gm.graph.nodes if isinstance(node.meta.get(VALUE), tuple)}
    for node in gm.graph.nodes:
        values = node.all_input_nodes if node.op != "output" else []
        read_by_unit = node.name in plan.unit_of()
        found.update((value, None) for value in values if value.name in own and read_by_unit)
        if node.name in own and node.op not in ("placeholder", "get_attr"):
            found[node] = None
    found.update((node, None) for node in gm.graph.nodes if node.name in own)
    return list(found)


def free_path(gm: GraphModule, start: int) -> str:
    """Return the first of ``activation_post_process_N`` that the model has no attribute of."""
    while hasattr(gm, f"{PREFIX}{start}"):
        start += 1
    return f"{PREFIX}{start}"


def observer_from_policy(policy: QParamsPolicy) -> nn.Module:
    """Return the module that measures a value."""
    if isinstance(policy, Fixed):
        scale, zero_point = policy.qparams.scale.item(), int(policy.qparams.zero_point.item())
        return FixedQParamsObserver(scale, zero_point, scheme=policy.qparams.scheme)
    assert isinstance(policy, Observed)  # in_order_of_operators chose it
    observer: nn.Module = policy.observer()
    return observer


def rename_fake_quants(gm: GraphModule, plan: QuantPlan) -> QuantPlan:
    """Call fake-quantize modules of values ``activation_post_process_0``, ..., and return the plan that knows it."""
    places = {path: ref for ref, path in plan.fake_quants.items() if ref.kind == "activation"}
    homes: dict[TensorRef, str] = {}
    calls = [node for node in gm.graph.nodes if node.op == "call_module" and node.target in places]
    for node in calls:
        path = free_path(gm, len(homes))
        module = gm.get_submodule(str(node.target))
        gm.delete_submodule(str(node.target))
        gm.add_submodule(path, module)
        homes[places[str(node.target)]] = path
        node.target = path
    gm.recompile()
    return replace(plan, fake_quants={**plan.fake_quants, **homes})
