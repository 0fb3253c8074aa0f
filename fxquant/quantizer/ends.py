"""Gives the first and the last layer of a model rules of their own: a ``LowBitMapping`` has them in more bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch.fx import GraphModule

from fxquant.analysis.overrides import addresses
from fxquant.graph.query import nodes_by_name
from fxquant.observers.low_bit import LowBitMapping
from fxquant.passes.qconfig_rules import rules_of_calls
from fxquant.plan.qconfig import QConfigMapping
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import Observed


def with_ends(config: LowBitMapping, gm: GraphModule, plan: QuantPlan) -> QConfigMapping:
    """Return the rules of ``config``, and a rule for each operator at the ends of the model.

    Args:
        config: It is not changed.
        gm: The graph that was planned.
        plan: As it was made by ``config``.
    """
    mapping = QConfigMapping.from_dict(config.to_dict())
    multiplying = [unit for unit in plan.units if _multiplies(unit, plan)]
    if config.ends is None or not multiplying:
        return mapping
    first, last = multiplying[0], multiplying[-1]
    before_last = [unit for unit in _makers_of_input(last, plan) if unit not in (first, last)]
    nodes, rules = nodes_by_name(gm), rules_of_calls(gm, config)
    by_root = addresses(gm, (first, last, *before_last), config)
    for unit in dict.fromkeys((first.root, last.root, *(each.root for each in before_last))):
        members = next(each.nodes for each in plan.units if each.root == unit)
        for name, address in zip(members, by_root[unit], strict=True):
            rule = rules[nodes[name]]
            if rule.kind != "global" or rule.qconfig is None:
                continue  # the user has said more
            keeps_weight = unit not in (first.root, last.root)
            chosen = replace(rule.qconfig, activation=config.ends.activation) if keeps_weight else config.ends
            address.set(mapping, chosen)
    return mapping


def _multiplies(unit: QuantUnit, plan: QuantPlan) -> bool:
    """Tell whether a unit multiplies by a weight: a table is read."""
    policy = plan.policies.get(unit.roles["weight"]) if "weight" in unit.roles else None
    return isinstance(policy, Observed) and not policy.observer().scheme.float_qparams


def _makers_of_input(unit: QuantUnit, plan: QuantPlan) -> Iterator[QuantUnit]:
    """Yield the unit whose result has the qparams that the input of ``unit`` is rounded by, if there is one."""
    if "x" not in unit.roles or unit.roles["x"] not in plan.policies:
        return
    owner = plan.qparams_owner(unit.roles["x"])
    if isinstance(plan.policies[owner], Observed):
        yield from (each for each in plan.units if each.roles.get("y") == owner)
