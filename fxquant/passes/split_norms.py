"""Gives the layers that read a norm a second norm of their own, where something else reads it too."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import replace

from torch.fx import GraphModule

from fxquant.graph.query import called_module, nodes_by_name
from fxquant.passes.base import PassContext, graph_pass
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.region import Split
from fxquant.plan.spec import Means, QParamsPolicy, SharedWith, TensorRef


@graph_pass(keeps_values=True)
def split_norms(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``linear(norm(x)) + norm(x)`` becomes ``linear(norm_scaled(x)) + norm(x)``.

    Then the channels that the linear layer reads can be scaled, and those of the sum are not.

    Source:
        Xiao et al., "SmoothQuant", arXiv:2211.10438, section 4, whose factors go into the norm before; that norms with
        other readers get a second one is ours.
    """
    for split in ctx.splits:
        _split(gm, ctx, split)
    return gm


def _split(gm: GraphModule, ctx: PassContext, split: Split) -> None:
    nodes = nodes_by_name(gm)
    (node,) = (each for each in nodes.values() if each.op == "call_module" and str(each.target) == split.norm)
    gm.add_submodule(split.path, copy.deepcopy(called_module(node)))
    with gm.graph.inserting_after(node):
        second = gm.graph.call_module(split.path, node.args, dict(node.kwargs))
    second.meta = copy.copy(node.meta)
    for name in split.readers:
        nodes[name].replace_input_with(node, second)
    ctx.plan = _replanned(ctx.plan, node.name, second.name, split.readers)


def _replanned(plan: QuantPlan, norm: str, second: str, readers: Collection[str]) -> QuantPlan:
    """Return a plan in which ``readers`` read the second norm, which is quantized as the first one is."""

    def renamed(ref: TensorRef) -> TensorRef:
        name, at, rest = ref.name.partition("@")
        read = name == norm and ref.kind in ("activation", "call", "mean")
        return TensorRef(f"{second}{at}{rest}", ref.kind) if read else ref

    # Units that read the second norm, and the unit of the norm itself, once more.
    units: list[QuantUnit] = []
    policies = dict(plan.policies)
    for unit in plan.units:
        if not set(readers).isdisjoint(unit.nodes):
            policies |= _policies(unit, plan, renamed)
            units.append(_renamed_unit(unit, norm, second, renamed))
            continue
        units.append(unit)
        if unit.root == norm:
            policies |= _policies(unit, plan, renamed)
            units.append(replace(_renamed_unit(unit, norm, second, renamed), nodes=(second,)))
    # The value of the second norm has the policy of the first.
    if (value := TensorRef(norm)) in policies:
        policies[TensorRef(second)] = policies[value]
    # Drop policies that nobody has any more.
    used = {ref for unit in units for ref in unit.roles.values()}
    gone = {ref for ref in policies if ref.kind in ("call", "mean") and ref not in used}
    refusals = [replace(refusal, node=second) for refusal in plan.refusals if refusal.node == norm]
    return replace(
        plan,
        units=tuple(units),
        policies={ref: policy for ref, policy in policies.items() if ref not in gone},
        refusals=(*plan.refusals, *refusals),
    )


def _renamed_unit(unit: QuantUnit, norm: str, second: str, renamed: Callable[[TensorRef], TensorRef]) -> QuantUnit:
    captures = {role: second if name == norm else name for role, name in unit.captures.items()}
    return replace(unit, captures=captures, roles={role: renamed(ref) for role, ref in unit.roles.items()})


def _policies(
    unit: QuantUnit, plan: QuantPlan, renamed: Callable[[TensorRef], TensorRef]
) -> dict[TensorRef, QParamsPolicy]:
    """Return the policies of the tensors of a unit, with those that they name renamed."""
    found: dict[TensorRef, QParamsPolicy] = {}
    for ref in unit.roles.values():
        policy = plan.policies.get(ref)
        if isinstance(policy, SharedWith):
            policy = replace(policy, source=renamed(policy.source))
        elif isinstance(policy, Means):
            policy = replace(policy, value=renamed(TensorRef(policy.value)).name)
        if policy is not None:
            found[renamed(ref)] = policy
    return found
