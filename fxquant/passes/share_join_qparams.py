"""Joins share a grid with each other, and with what they join, where the ranges are nearly the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch.fx import GraphModule

from fxquant.observers.qparams import choose_qparams
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.joins import Joins
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Observed, QParams, QParamsPolicy, SharedWith, TensorRef

Range = tuple[float, float]
"""Smallest and largest number, in real units."""

CLOSE_VALUE = 2**0.5
"""How many times as wide as its range the grid of a joined value may be that others read, too. Rounding once on steps
√2 times as wide makes as much noise, over both readers, as rounding on its own grid and again on that of the join."""
CLOSE_JOIN = 2.0
"""The same for the result of a join that is itself joined no further: a bit, for which what several joins read, as in a
dense block, is rounded once in place of once more in each of them."""


@graph_pass(keeps_values=True)
def share_join_qparams(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Where nothing is lost by it, what is joined lies on the grid of the join, which then only copies.

    The graph stays as it is. After training, so does the plan: it was trained on.
    """
    if ctx.plan.fake_quants:
        return gm
    joins, plan = Joins(gm, ctx), ctx.plan
    made_by = {unit.root: plan.qparams_owner(unit.roles["y"]) for unit in joins.units}
    beside_others: dict[TensorRef, set[TensorRef]] = {}
    joined_only: dict[TensorRef, set[TensorRef]] = {}
    for owner, readers in joins.joined().items():
        (beside_others if readers.others else joined_only)[owner] = {made_by[root] for root in readers.joins}
    limits = dict.fromkeys(made_by.values(), CLOSE_JOIN) | dict.fromkeys(beside_others, CLOSE_VALUE)
    groups = _connected(
        [*joined_only.values(), *({owner, *all_qparams} for owner, all_qparams in beside_others.items())]
    )
    for members in (members for group in groups for members in _alike(group, limits, plan)):
        joined = [owner for owner, all_qparams in joined_only.items() if all_qparams <= {*members}]
        plan = _on_one_qparams(members, joined, plan)
    ctx.plan = plan
    return gm


def _connected(sets: Iterable[set[TensorRef]]) -> list[set[TensorRef]]:
    """The unions of those sets that overlap, directly or through others."""
    groups: list[set[TensorRef]] = []
    for each in sets:
        touching = [group for group in groups if group & each]
        groups = [group for group in groups if not group & each] + [each.union(*touching)]
    return groups


def _alike(owners: Iterable[TensorRef], limits: Mapping[TensorRef, float], plan: QuantPlan) -> list[list[TensorRef]]:
    """Grids that one grid can stand for: the widest with all that are nearly as wide, then the widest of the rest, …"""
    ends = {ref: _ends(plan.qparams[ref]) for ref in owners if isinstance(plan.policies[ref], Observed)}
    widths = {ref: high - low for ref, (low, high) in ends.items()}
    found: list[list[TensorRef]] = []
    for owner in sorted(ends, key=lambda ref: (-widths[ref], str(ref))):
        for members in found:
            together = [*members, owner]
            low, high = _hull([ends[ref] for ref in together])
            one_scheme = len({plan.qparams[ref].scheme for ref in together}) == 1
            if one_scheme and all(high - low <= limits[ref] * widths[ref] for ref in together):
                members.append(owner)
                break
        else:
            found.append([owner])
    return found


def _on_one_qparams(members: Sequence[TensorRef], joined: Sequence[TensorRef], plan: QuantPlan) -> QuantPlan:
    target, qparams = members[0], _over([plan.qparams[ref] for ref in members])
    policies: dict[TensorRef, QParamsPolicy] = dict(plan.policies)
    for ref in (*members[1:], *joined):
        if ref != target and isinstance(policies[ref], Observed) and plan.qparams[ref].scheme == qparams.scheme:
            policies[ref] = SharedWith(target)
    merged = replace(plan, policies=policies)
    moved = {
        ref: qparams.scaled(merged.qparams_factor(ref))
        for ref in plan.qparams
        if ref in policies and merged.qparams_owner(ref) == target
    }
    return replace(merged, qparams={**plan.qparams, **moved})


def _over(all_qparams: Sequence[QParams]) -> QParams:
    """A grid over the ranges of all; grids that are one and the same are that one."""
    if len(all_qparams) == 1 or all(qparams.same_qparams(all_qparams[0]) for qparams in all_qparams):
        return all_qparams[0]
    low, high = torch.tensor(_hull([_ends(qparams) for qparams in all_qparams])).to(all_qparams[0].scale)
    return choose_qparams(low, high, all_qparams[0].scheme, eps=min(float(qparams.scale) for qparams in all_qparams))


def _hull(ranges: Sequence[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _ends(qparams: QParams) -> Range:
    """Smallest and largest number of a grid, in real units."""
    scale, zero_point = float(qparams.scale), int(qparams.zero_point)
    return (qparams.scheme.quant_min - zero_point) * scale, (qparams.scheme.quant_max - zero_point) * scale
