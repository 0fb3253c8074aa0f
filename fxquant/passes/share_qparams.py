"""Lets grids that must be one meet."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import GraphModule

from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.joins import Joins
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Observed, QParamsPolicy, QScheme, SharedWith, TensorRef


@graph_pass(after=("annotate",), keeps_values=True)
def share_qparams(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """What nothing but a join reads lies on the grid of the joined value; the graph stays as it is.

    What anything else reads, another operator, the user or a second join, keeps a grid of its own, and the join
    requantizes it. So does what is fixed, is observed for another number of bits, or is a multiple of something.
    """
    joins, plan = Joins(gm, ctx), ctx.plan
    made_by = {unit.root: unit.roles["y"] for unit in joins.units}
    order = {root: index for index, root in enumerate(made_by)}
    joined = [(owner, readers.joins) for owner, readers in joins.joined().items() if not readers.others]
    for owner, roots in sorted(joined, key=lambda each: -order[each[1][0]]):
        # Later joins first: the grid that a join ends on may be that of a later one.
        plan = _on_one_qparams(plan, owner, {plan.qparams_owner(made_by[root]) for root in roots})
    ctx.plan = plan
    return gm


def _on_one_qparams(plan: QuantPlan, owner: TensorRef, targets: set[TensorRef]) -> QuantPlan:
    target = min(targets, key=str)
    policies: dict[TensorRef, QParamsPolicy] = dict(plan.policies)
    scheme = _scheme_of(policies[owner])
    if len(targets) > 1 or owner == target or scheme is None or scheme != _scheme_of(policies[target]):
        return plan
    policies[owner] = SharedWith(target)
    return replace(plan, policies=policies)


def _scheme_of(policy: QParamsPolicy) -> QScheme | None:
    return policy.observer().scheme if isinstance(policy, Observed) else None
