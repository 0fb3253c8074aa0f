"""Lets joined values share qparams: where nothing else reads them, and, once calibrated, where ranges are close."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import GraphModule, Node

from fxquant.graph.query import is_shape_query, nodes_by_name
from fxquant.observers.qparams import choose_qparams
from fxquant.passes.base import PassContext, graph_pass
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import Observed, QParams, QParamsPolicy, QScheme, SharedWith, TensorRef


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of the values that have the same qparams."""

    joins: tuple[str, ...]
    """Roots of the joins among them, in the order of the graph."""
    others: bool
    """Whether anything else does: another operator, or whoever called the model."""


class Joins:
    """The joins of a plan, and who reads what they join.

    A value that only moves or clamps another one has the same qparams, and so counts as that one: what reads it reads
    the quantized values of both.
    """

    def __init__(self, gm: GraphModule, ctx: PassContext) -> None:
        plan = ctx.plan
        self.units: tuple[QuantUnit, ...] = ctx.joins()
        """In the order of the graph."""
        self._order = {unit.root: index for index, unit in enumerate(self.units)}
        self._plan = plan
        self._nodes = nodes_by_name(gm)
        self._unit_of = plan.unit_of()
        self._on_qparams_of: dict[TensorRef, list[TensorRef]] = {}
        for ref in plan.policies:
            if ref.kind == "activation":
                self._on_qparams_of.setdefault(plan.qparams_owner(ref), []).append(ref)

    def joined(self) -> dict[TensorRef, Readers]:
        """Return what reads values with the qparams of joined values, by the owner of these qparams."""
        owners = (self._plan.qparams_owner(unit.roles[name]) for unit in self.units for name in unit.inputs)
        return {owner: self._reading(owner) for owner in dict.fromkeys(owners)}

    def factors(self) -> dict[TensorRef, float]:
        """Return, by the owner of qparams, the one factor of its scale in what is joined."""
        found: dict[TensorRef, set[float]] = {}
        for ref in (unit.roles[name] for unit in self.units for name in unit.inputs):
            found.setdefault(self._plan.qparams_owner(ref), set()).add(self._plan.qparams_factor(ref))
        return {owner: factors.pop() for owner, factors in found.items() if len(factors) == 1}

    def _reading(self, owner: TensorRef) -> Readers:
        found: set[str] = set()
        others = False
        for ref in self._on_qparams_of[owner]:
            others |= self._plan.qparams_factor(ref) != 1  # the same integers stand for other numbers there
            for reader in self._readers(ref):
                unit = self._unit_of.get(reader.name)
                if unit is not None and unit.root in self._order:
                    found.add(unit.root)
                else:
                    others |= unit is None or not self._is_on_qparams(unit, owner)
        return Readers(tuple(sorted(found, key=self._order.__getitem__)), others)

    def _readers(self, ref: TensorRef) -> Sequence[Node]:
        """List what reads the quantized values; of a value that no unit makes, float operators read the float ones."""
        node = self._nodes[ref.name]
        readers = [user for user in node.users if not is_shape_query(user)]
        return readers if ref.name in self._unit_of else [user for user in readers if user.name in self._unit_of]

    def _is_on_qparams(self, unit: QuantUnit, owner: TensorRef) -> bool:
        return "y" in unit.roles and self._plan.qparams_owner(unit.roles["y"]) == owner


@graph_pass(after=("annotate",), keeps_values=True)
def share_qparams(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Give values that nothing but a join reads the qparams of the joined value; the graph stays as it is.

    What anything else reads, another operator, the user or a second join, keeps its own qparams, and the join
    requantizes it. So does what is fixed, is observed for another number of bits, or is a multiple of something.
    """
    joins, plan = Joins(gm, ctx), ctx.plan
    made_by = {unit.root: unit.roles["y"] for unit in joins.units}
    order = {root: index for index, root in enumerate(made_by)}
    joined = [(owner, readers.joins) for owner, readers in joins.joined().items() if not readers.others]
    for owner, roots in sorted(joined, key=lambda each: -order[each[1][0]]):
        # Later joins first: the qparams that a join ends with may be those of a later one.
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


Range = tuple[float, float]
"""Smallest and largest float value."""

CLOSE_VALUE = 2**0.5
"""How many times as wide as its own the range of a joined value may be that others read, too. Rounding once on steps
√2 times as wide makes as much noise, over both readers, as rounding to its own qparams and again to the join's."""
CLOSE_JOIN = 2.0
"""The same for the result of a join that is itself joined no further: a bit, for which what several joins read, as in a
dense block, is rounded once in place of once more in each of them."""


@graph_pass(keeps_values=True)
def share_join_qparams(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Give what is joined the qparams of the join, where nothing is lost by it: the join then only copies.

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
    factors: Mapping[TensorRef, float] = {}
    if ctx.backend.joins_on_one_qparams:
        limits, factors = dict.fromkeys(limits, math.inf), joins.factors()
    groups = _connected(
        [*joined_only.values(), *({owner, *all_qparams} for owner, all_qparams in beside_others.items())]
    )
    for members in (members for group in groups for members in _alike(group, limits, plan, factors)):
        joined = [owner for owner, all_qparams in joined_only.items() if all_qparams <= {*members}]
        plan = _on_joint_qparams(members, joined, plan, factors)
    ctx.plan = plan
    return gm


def _connected(sets: Iterable[set[TensorRef]]) -> list[set[TensorRef]]:
    """Return the unions of those sets that overlap, directly or through others."""
    groups: list[set[TensorRef]] = []
    for each in sets:
        touching = [group for group in groups if group & each]
        groups = [group for group in groups if not group & each] + [each.union(*touching)]
    return groups


def _alike(
    owners: Iterable[TensorRef],
    limits: Mapping[TensorRef, float],
    plan: QuantPlan,
    factors: Mapping[TensorRef, float],
) -> list[list[TensorRef]]:
    """Group qparams that one can stand for: the widest with all nearly as wide, then the widest of the rest, …

    What is joined after a factor counts as wide as it is there.
    """
    ends = {
        ref: _ends(plan.qparams[ref].scaled(factors.get(ref, 1.0)))
        for ref in owners
        if isinstance(plan.policies[ref], Observed)
    }
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


def _on_joint_qparams(
    members: Sequence[TensorRef], joined: Sequence[TensorRef], plan: QuantPlan, factors: Mapping[TensorRef, float]
) -> QuantPlan:
    plain = [ref for ref in members if factors.get(ref, 1.0) == 1.0]
    if not plain:  # no join is among them
        return plan
    target = plain[0]
    qparams = _over([plan.qparams[ref].scaled(factors.get(ref, 1.0)) for ref in members])
    policies: dict[TensorRef, QParamsPolicy] = dict(plan.policies)
    for ref in (*members, *joined):
        if ref != target and isinstance(policies[ref], Observed) and plan.qparams[ref].scheme == qparams.scheme:
            policies[ref] = SharedWith(target, factor=1.0 / factors.get(ref, 1.0))
    merged = replace(plan, policies=policies)
    moved = {
        ref: qparams.scaled(merged.qparams_factor(ref))
        for ref in plan.qparams
        if ref in policies and merged.qparams_owner(ref) == target
    }
    return replace(merged, qparams={**plan.qparams, **moved})


def _over(all_qparams: Sequence[QParams]) -> QParams:
    """Choose qparams over the ranges of all; those that are all the same are that one."""
    if len(all_qparams) == 1 or all(qparams.same_qparams(all_qparams[0]) for qparams in all_qparams):
        return all_qparams[0]
    low, high = torch.tensor(_hull([_ends(qparams) for qparams in all_qparams])).to(all_qparams[0].scale)
    return choose_qparams(low, high, all_qparams[0].scheme, eps=min(float(qparams.scale) for qparams in all_qparams))


def _hull(ranges: Sequence[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _ends(qparams: QParams) -> Range:
    """Return the smallest and the largest float value that the qparams represent."""
    scale, zero_point = float(qparams.scale), int(qparams.zero_point)
    return (qparams.scheme.quant_min - zero_point) * scale, (qparams.scheme.quant_max - zero_point) * scale
