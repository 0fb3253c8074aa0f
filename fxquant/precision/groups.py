"""Groups of units that must choose their bits together, and what a group reads and multiplies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from fxquant.analysis.naming import title_of
from fxquant.graph.macs import multiply_accumulates
from fxquant.graph.query import called_module, nodes_by_name, value_of
from fxquant.graph.recurrent import weight_of
from fxquant.passes.base import PassContext
from fxquant.plan.precision import UnitWork
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import Handled, SharedWith, TensorRef

WEIGHT, QPARAMS, INPUT, JOIN = "one weight", "one scale of results", "one value that both read", "one scale of a join"
"""Why units choose together."""


@dataclass(frozen=True, slots=True)
class PrecisionGroup:
    """Units that choose together, in the order of the graph."""

    name: str
    """Paths of the layers, or names of the values, of those that have a choice of their own."""
    units: tuple[QuantUnit, ...]
    work: tuple[UnitWork, ...]
    """Of each unit."""
    reason: str = ""
    """Why they choose together; empty for one unit."""

    @property
    def roots(self) -> tuple[str, ...]:
        """Return the names of the root nodes."""
        return tuple(unit.root for unit in self.units)


def precision_groups(gm: GraphModule, ctx: PassContext) -> tuple[PrecisionGroup, ...]:
    """Return the groups of a plan, in the order of the graph.

    Units choose together that use one weight; whose results have one scale, as those of what only moves values do; that
    read a value which no unit makes, so that it is rounded once for both; and, where the back end gives joins one
    scale, those that make what is joined. Units with a handler of the user's are in no group: their bits are its own.

    Args:
        gm: The prepared float graph.
        ctx: With its plan.
    """
    plan, nodes = ctx.plan, nodes_by_name(gm)
    units = [unit for unit in plan.units if not _is_handled(unit, plan)]
    sets = _Sets(unit.root for unit in units)
    for reason, together in _shared(gm, units, ctx):
        for other in together[1:]:
            sets.join(together[0], other, reason)
    by_root = {unit.root: unit for unit in units}
    counted: set[int] = set()
    groups = []
    for roots, reasons in sets.groups():
        members = tuple(by_root[root] for root in roots)
        work = tuple(_work(unit, nodes, ctx, counted) for unit in members)
        deciding = [unit for unit in members if not keeps_values(unit, plan)] or list(members)
        name = ", ".join(dict.fromkeys(title_of(nodes[unit.nodes[0]], unit.root) for unit in deciding))
        groups.append(PrecisionGroup(name, members, work, ", ".join(reasons)))
    return tuple(groups)


def keeps_values(unit: QuantUnit, plan: QuantPlan) -> bool:
    """Tell whether a unit rounds nothing: it has the qparams of its input."""
    policy = plan.policies.get(unit.roles["y"]) if "y" in unit.roles else None
    return isinstance(policy, SharedWith) and "weight" not in unit.roles


def outside_values(unit: QuantUnit, plan: QuantPlan) -> tuple[TensorRef, ...]:
    """Return the values that a unit reads and that no unit makes."""
    made = {each.root for each in plan.units if "y" in each.roles}
    return tuple(dict.fromkeys(unit.roles[role] for role in unit.inputs if unit.roles[role].name not in made))


def _is_handled(unit: QuantUnit, plan: QuantPlan) -> bool:
    return any(isinstance(plan.policies.get(ref), Handled) for ref in unit.roles.values())


def _shared(gm: GraphModule, units: Iterable[QuantUnit], ctx: PassContext) -> Iterable[tuple[str, list[str]]]:
    """Yield the roots of units that something makes choose together, and what that is."""
    nodes, plan = nodes_by_name(gm), ctx.plan
    of_weight: dict[int, list[str]] = {}
    of_owner: dict[TensorRef, list[str]] = {}
    readers: dict[TensorRef, list[str]] = {}
    made = {each.root for each in plan.units if "y" in each.roles}
    # Who shares a weight, qparams, or an input.
    for unit in units:
        if "weight" in unit.roles:
            of_weight.setdefault(id(_parameter(unit, nodes, ctx)), []).append(unit.root)
        if "y" in unit.roles:
            owner = plan.qparams_owner(unit.roles["y"])
            of_owner.setdefault(owner, []).append(unit.root)
            if owner.name not in made:
                readers.setdefault(owner, []).append(unit.root)
        for role in unit.inputs:
            if unit.roles[role].name not in made:
                readers.setdefault(unit.roles[role], []).append(unit.root)
    yield from ((WEIGHT, roots) for roots in of_weight.values())
    yield from ((QPARAMS, roots) for roots in of_owner.values())
    yield from ((INPUT, list(dict.fromkeys(roots))) for roots in readers.values())
    # Who is joined.
    if ctx.backend.joins_on_one_qparams:
        known = {unit.root for unit in units}
        for unit in ctx.joins():
            owners = [plan.qparams_owner(unit.roles[role]) for role in (*unit.inputs, "y") if role in unit.roles]
            together = [root for owner in owners for root in of_owner.get(owner, ())] + [unit.root]
            yield JOIN, [root for root in dict.fromkeys(together) if root in known]


def _parameter(unit: QuantUnit, nodes: Mapping[str, Node], ctx: PassContext) -> object:
    """Return the parameter that a unit multiplies with: layers that share it have the same object."""
    layer = called_module(nodes[unit.captures[ctx.pattern_of(unit).weight_capture or ""]])
    return getattr(layer, "weight", layer)


def _work(unit: QuantUnit, nodes: Mapping[str, Node], ctx: PassContext, counted: set[int]) -> UnitWork:
    """Count what a unit does; a weight counts where it is met first."""
    weights = 0
    if "weight" in unit.roles and (parameter := id(_parameter(unit, nodes, ctx))) not in counted:
        counted.add(parameter)
        weights = weight_of(called_module(nodes[unit.captures[ctx.pattern_of(unit).weight_capture or ""]])).numel()
    info = value_of(nodes[unit.root])
    stored = "y" in unit.roles and not keeps_values(unit, ctx.plan) and info is not None and info.has_shape
    return UnitWork(
        macs=sum(multiply_accumulates(nodes[name]) for name in unit.nodes),
        weights=weights,
        values=math.prod(info.shape) if stored and info is not None else 0,
        has_weight="weight" in unit.roles,
    )


class _Sets:
    """Roots of units, joined step by step."""

    def __init__(self, roots: Iterable[str]) -> None:
        self._order = {root: place for place, root in enumerate(roots)}
        self._members = {root: [root] for root in self._order}
        self._reasons: dict[str, list[str]] = {root: [] for root in self._order}
        self._head = {root: root for root in self._order}

    def join(self, one: str, other: str, reason: str) -> None:
        """Put two roots into one set."""
        one, other = self._head[one], self._head[other]
        if reason not in self._reasons[one]:
            self._reasons[one].append(reason)
        if one == other:
            return
        self._reasons[one] += [each for each in self._reasons.pop(other) if each not in self._reasons[one]]
        for member in self._members.pop(other):
            self._head[member] = one
            self._members[one].append(member)

    def groups(self) -> list[tuple[list[str], list[str]]]:
        """Return the roots of each set, and why they are together, in the order of the first root."""
        found = [
            (sorted(members, key=self._order.__getitem__), self._reasons[head])
            for head, members in self._members.items()
        ]
        return sorted(found, key=lambda each: self._order[each[0][0]])
