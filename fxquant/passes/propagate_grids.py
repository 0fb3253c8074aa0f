"""Lets grids that must be one meet."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import GraphModule

from fxquant.passes.base import PassContext, graph_pass
from fxquant.patterns.pattern import Output
from fxquant.plan import QuantPlan, QuantUnit
from fxquant.spec import GridPolicy, Observed, QScheme, SharedWith, TensorRef


@graph_pass(after=("annotate",), keeps_values=True)
def propagate_grids(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Refine the plan's policies; the graph stays as it is."""
    plan = ctx.plan
    for unit in plan.units:
        if ctx.pattern_of(unit).output is Output.ONE_FOR_ALL:
            plan = _join(plan, unit)
    ctx.plan = plan
    return gm


def _join(plan: QuantPlan, unit: QuantUnit) -> QuantPlan:
    """Let the inputs of a concatenation use the grid of its output, where they have none of another kind.

    What is fixed, is observed for another number of bits, or is a multiple of something, keeps its own: the
    concatenation requantizes it.
    """
    target = plan.grid_owner(unit.roles["y"])
    scheme = _scheme_of(plan.policies[target])
    direct = {ref for name in unit.inputs if plan.grid_factor(ref := unit.roles[name]) == 1}
    policies: dict[TensorRef, GridPolicy] = dict(plan.policies)
    for ref in direct:
        owner = plan.grid_owner(ref)
        if owner != target and isinstance(policies[owner], Observed) and _scheme_of(policies[owner]) == scheme:
            # An owner further up (the input of a max-pool, say) may hold values that never reach the output.
            policies[owner] = SharedWith(target, observed=owner not in direct)
            plan = replace(plan, policies=policies)
    return plan


def _scheme_of(policy: GridPolicy) -> QScheme | None:
    return policy.observer().scheme if isinstance(policy, Observed) else None
