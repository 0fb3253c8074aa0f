"""Lets grids that must be one meet, and drops units that would only move float values."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import GraphModule

from fxquant.passes.base import PassContext, graph_pass
from fxquant.patterns.pattern import Output, Pattern
from fxquant.plan import QuantPlan, QuantUnit, Rejection
from fxquant.spec import GridPolicy, Observed, QScheme, SharedWith, TensorRef

LONELY = "neither what makes its input nor what reads its output is quantized"


@graph_pass(after=("annotate",), keeps_values=True)
def propagate_grids(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Refine the plan's units and policies; the graph stays as it is."""
    patterns = {pattern.name: pattern for pattern in ctx.patterns}
    plan = _without_lonely_moves(ctx.plan, patterns)
    for unit in plan.units:
        if patterns[unit.pattern].output is Output.ONE_FOR_ALL:
            plan = _join(plan, unit)
    ctx.plan = plan
    return gm


def _moves_only(unit: QuantUnit, patterns: dict[str, Pattern]) -> bool:
    return patterns[unit.pattern].output in (Output.PICKED, Output.CLAMPED)


def _without_lonely_moves(plan: QuantPlan, patterns: dict[str, Pattern]) -> QuantPlan:
    """Quantizing a value only to reshape or clamp it would cost accuracy for nothing."""
    made_by = {unit.roles["y"]: unit for unit in plan.units if "y" in unit.roles}
    read_by: dict[TensorRef, list[QuantUnit]] = {}
    for unit in plan.units:
        for name in unit.inputs:
            read_by.setdefault(unit.roles[name], []).append(unit)
    useful = {unit.root for unit in plan.units if not _moves_only(unit, patterns)}

    def forwards() -> None:
        """What moves a quantized value."""
        for unit in plan.units:
            source = made_by.get(unit.roles[unit.inputs[0]]) if unit.inputs else None
            if source is not None and source.root in useful:
                useful.add(unit.root)

    forwards()
    for unit in reversed(plan.units):  # backwards: what moves a value that will be quantized
        if "y" in unit.roles and any(reader.root in useful for reader in read_by.get(unit.roles["y"], ())):
            useful.add(unit.root)
    forwards()  # the other parts of a split, say
    lonely = [unit for unit in plan.units if unit.root not in useful]
    if not lonely:
        return plan
    units = tuple(unit for unit in plan.units if unit.root in useful)
    needed = {ref for unit in units for ref in unit.roles.values()}
    return replace(
        plan,
        units=units,
        policies={ref: policy for ref, policy in plan.policies.items() if ref in needed},
        rejections=plan.rejections + tuple(Rejection(u.root, u.pattern, LONELY, excused=True) for u in lonely),
    )


def _join(plan: QuantPlan, unit: QuantUnit) -> QuantPlan:
    """Let the inputs of a concatenation use the grid of its output, where they have none of another kind.

    What is fixed, or is observed for another number of bits, keeps its own: the concatenation requantizes it.
    """
    target = plan.grid_owner(unit.roles["y"])
    scheme = _scheme_of(plan.policies[target])
    direct = {unit.roles[name] for name in unit.inputs}
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
