"""Joins of values that differ much in range stay float, where nothing that reads them needs integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import GraphModule, Node

from fxquant.backends.base import AsCalled
from fxquant.graph.query import nodes_by_name
from fxquant.observers.qparams import choose_qparams
from fxquant.passes.base import PassContext
from fxquant.passes.boundary_names import given_as_integers
from fxquant.passes.elements import readers_of
from fxquant.passes.qconfig_rules import rules_of_calls
from fxquant.patterns.pattern import Bounded, Output
from fxquant.plan.quant_plan import QuantPlan, QuantUnit, Refusal
from fxquant.plan.spec import QParams, QParamsPolicy, TensorRef

UNEQUAL = "the ranges of what it joins differ {:.3g} times, and all that reads it takes floats"
JOINED = "what joins its result stays float"
ALONG = "it moves what is joined in float, and all that reads it takes floats"


@dataclass(frozen=True, slots=True)
class JoinRanges:
    """Holds what was calibrated of the inputs of a join."""

    ratio: float
    """How many times as wide the widest of its inputs is as the narrowest."""
    ranges: Mapping[str, tuple[float, float]]
    """Name of each input -> its smallest and largest float value."""


def with_joins_in_float(
    gm: GraphModule,
    ctx: PassContext,
    qparams: Mapping[TensorRef, QParams],
    refused: Sequence[Refusal],
    joins: Mapping[str, JoinRanges],
    limit: float,
) -> QuantPlan:
    """The plan of a context, with qparams; without the units that are refused, and without joins that are better float.

    What such a join takes leaves its layer in float, or is dequantized from qparams of its own range. A bounded
    function that reads it, sigmoid say, is called with float values.

    Args:
        gm: The prepared float graph.
        ctx: With the plan as it was prepared.
        qparams: Of the tensors that own their qparams.
        refused: Units that stay float for other reasons.
        joins: Root of a join -> what was calibrated. Of a model that was trained there is nothing, and nothing changes.
        limit: The ratio of ranges beyond which integers are worse.
    """
    decision = _Decision(gm, ctx, {each.node for each in refused})
    for unit in reversed([unit for unit in ctx.joins() if unit.root in joins]):
        if joins[unit.root].ratio > limit:
            decision.leave(unit, UNEQUAL.format(joins[unit.root].ratio))
        elif decision.is_on_qparams_of_one(unit):
            decision.leave(unit, JOINED)
    if not decision.in_float:
        return ctx.plan.with_observations(qparams, refused)
    policies, own = decision.qparams_of_inputs(qparams, joins)
    plan = replace(ctx.plan, units=tuple(map(decision.as_read, ctx.plan.units)), policies=policies)
    return plan.with_observations({**qparams, **own}, (*refused, *decision.in_float.values()))


def joins_of_floats(gm: GraphModule, ctx: PassContext) -> set[str]:
    """Roots of the joins that nothing needs quantized: they become int8 only where the same qparams suit all parts."""
    decision = _Decision(gm, ctx, set())
    return {unit.root for unit in ctx.joins() if decision.floats_suffice(unit.root)}


class _Decision:
    """Decides which joins stay float, and what follows from it for what makes their inputs and reads their results."""

    def __init__(self, gm: GraphModule, ctx: PassContext, gone: set[str]) -> None:
        self._nodes = nodes_by_name(gm)
        self._ctx = ctx
        self._gone = gone
        self._unit_of = ctx.plan.unit_of()
        self._decisions = rules_of_calls(gm, ctx.config)
        self._as_integers = given_as_integers(gm, ctx.integer_outputs)
        self.in_float: dict[str, Refusal] = {}
        """By the roots of their units."""
        self._on_floats: set[str] = set()

    def leave(self, join: QuantUnit, reason: str) -> None:
        """Leave a join in float, with what moves its result, if nothing that reads it needs integers."""
        if join.root not in self._gone and self.floats_suffice(join.root):
            self._leave(join, reason)

    def is_on_qparams_of_one(self, join: QuantUnit) -> bool:
        """Tell whether a join shares the qparams of one that stays float."""
        return self._ctx.plan.qparams_owner(join.roles["y"]) in self._owners()

    def floats_suffice(self, root: str) -> bool:
        """Tell whether every reader of a value takes floats."""
        return all(self._takes_floats(root, reader) for reader in readers_of(self._nodes[root]))

    def as_read(self, unit: QuantUnit) -> QuantUnit:
        """Return a unit: without inputs where it is called with floats, without ``"y"`` where it may give them."""
        if unit.root in self._on_floats:
            kept = {role: ref for role, ref in unit.roles.items() if role not in unit.inputs}
            return replace(unit, inputs=(), roles=kept)
        if self._feeds_only_floats(unit):
            return replace(unit, roles={role: ref for role, ref in unit.roles.items() if role != "y"})
        return unit

    def qparams_of_inputs(
        self, qparams: Mapping[TensorRef, QParams], calibrated: Mapping[str, JoinRanges]
    ) -> tuple[dict[TensorRef, QParamsPolicy], dict[TensorRef, QParams]]:
        """Policies and qparams for what had the qparams of a join that stays float: now it has its own."""
        plan = self._ctx.plan
        owners, ends = self._owners(), dict[TensorRef, list[float]]()
        for unit in self._joins_in_float():
            for ref in (unit.roles[role] for role in unit.inputs):
                link, owner = plan.last_link(ref)
                if owner in owners and link != owner and ref.name not in self.in_float:
                    factor = plan.qparams_factor(ref) / plan.qparams_factor(link)
                    ends.setdefault(link, []).extend(end / factor for end in calibrated[unit.root].ranges[ref.name])
        policies, own = dict(plan.policies), dict[TensorRef, QParams]()
        for link, values in ends.items():
            owner = plan.qparams_owner(link)
            low, high = (torch.tensor([end]).to(qparams[owner].scale) for end in (min(values), max(values)))
            policies[link] = plan.policies[owner]
            own[link] = choose_qparams(low, high, qparams[owner].scheme)
        return policies, own

    def _joins_in_float(self) -> list[QuantUnit]:
        return [unit for unit in self._ctx.joins() if unit.root in self.in_float]

    def _owners(self) -> set[TensorRef]:
        """Return the owners of the qparams of joins that stay float."""
        return {self._ctx.plan.qparams_owner(unit.roles["y"]) for unit in self._joins_in_float()}

    def _leave(self, unit: QuantUnit, reason: str) -> None:
        self.in_float[unit.root] = Refusal(unit.root, unit.pattern, reason, excused=True)
        for reader in readers_of(self._nodes[unit.root]):
            behind = self._reads_integers(unit.root, reader)
            if behind is None:
                continue
            if self._may_read_floats(behind):
                self._on_floats.add(behind.root)
            else:
                self._leave(behind, ALONG)

    def _reads_integers(self, value: str, reader: Node) -> QuantUnit | None:
        """Return the unit that reads the integers of a value, as things stand."""
        unit = self._unit_of.get(reader.name)
        if unit is None or unit.root in self._gone or unit.root in self.in_float or unit.root in self._on_floats:
            return None
        return unit if any(unit.roles[role].name == value for role in unit.inputs) else None

    def _takes_floats(self, value: str, reader: Node) -> bool:
        if reader.op == "output":
            return not self._is_rounded(value)
        unit = self._reads_integers(value, reader)
        if unit is None or self._may_read_floats(unit):
            return True
        moves = self._ctx.pattern_of(unit).output in (Output.PICKED, Output.CLAMPED)
        return moves and self.floats_suffice(unit.root)

    def _may_read_floats(self, unit: QuantUnit) -> bool:
        """Tell whether it is a bounded function that the back end can call with float values."""
        pattern = self._ctx.pattern_of(unit)
        rule = self._ctx.backend.rule_for(pattern)
        bounded = isinstance(pattern.output, Bounded) and len(unit.inputs) == 1
        return bounded and rule is not None and isinstance(rule.build, AsCalled)

    def _feeds_only_floats(self, unit: QuantUnit) -> bool:
        """Tell whether it makes an input of a join that stays float, and nothing needs its result quantized."""
        pattern = self._ctx.pattern_of(unit)
        rule = self._ctx.backend.rule_for(pattern)
        if "y" not in unit.roles or not pattern.multiplies or rule is None or not rule.float_result:
            return False
        readers = readers_of(self._nodes[unit.root])
        joined = any(reader.name in self.in_float for reader in readers)
        rounded = self._is_rounded(unit.root) and any(reader.op == "output" for reader in readers)
        return joined and not rounded and not any(self._reads_integers(unit.root, reader) for reader in readers)

    def _is_rounded(self, value: str) -> bool:
        """Tell whether a value that the model returns is rounded: given as integers, or observed on its way out."""
        if value in self._as_integers:
            return True
        decision = self._decisions.get(self._nodes[value])
        return decision is not None and decision.qconfig is not None and decision.qconfig.output is not None
