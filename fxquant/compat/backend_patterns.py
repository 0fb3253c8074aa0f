"""Reads a ``BackendConfig``: units that it does not name, or whose dtypes it forbids, stay float."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from fxquant.compat.duck_typing import scheme_of
from fxquant.fake_quantize.base import observer_in
from fxquant.graph.operators.spelling import spellings
from fxquant.graph.query import module_path, nodes_by_name
from fxquant.observers.scheme import make_scheme
from fxquant.passes.qconfig_rules import rules_of_calls
from fxquant.plan.qconfig import QConfigMapping
from fxquant.plan.quant_plan import QuantPlan, QuantUnit, Refusal


def allowed_by(gm: GraphModule, plan: QuantPlan, config: QConfigMapping, backend: Any) -> QuantPlan:
    """Return the plan without the units that a ``BackendConfig`` does not allow."""
    nodes, rules = nodes_by_name(gm), rules_of_calls(gm, config)
    refused = []
    for unit in plan.units:
        members = [nodes[name] for name in unit.nodes]
        qconfig = next((rules[n].qconfig for n in members if n in rules and rules[n].qconfig), None)
        reason = _forbidden(members, unit, qconfig, backend)
        if reason:
            refused.append(Refusal(unit.root, unit.pattern, reason, excused=True))
    if not refused:
        return plan
    idle = plan.idle
    from_refusals = plan.with_observations({}, refused)
    return QuantPlan(from_refusals.units, from_refusals.policies, from_refusals.refusals, {}, {}, idle)


def _forbidden(members: list[Node], unit: QuantUnit, qconfig: Any, backend: Any) -> str:
    """Return why a unit may not be quantized, or nothing."""
    named = [names for names in map(_names, members) if names]
    entries = [entry for entry in backend.configs if _covers(entry.pattern, named)]
    if not entries:
        return f"the BackendConfig {backend.name!r} has no pattern for it" if named else ""
    if qconfig is None:
        return ""
    reasons = [_dtypes_forbid(conf, unit, qconfig) for entry in entries for conf in entry.dtype_configs]
    return reasons[0] if reasons and all(reasons) else ""


def _names(node: Node) -> set[Any]:
    kind = module_path(node)[1]
    return {*spellings(node), *([kind] if kind is not None else []), *(kind.__mro__ if kind is not None else ())} - {
        nn.Module,
        object,
    }


def _covers(pattern: Any, named: list[set[Any]]) -> bool:
    """Tell whether a pattern, or its first operator, is that of a unit: what is fused after it comes along."""
    if isinstance(pattern, tuple):
        flat = [item for item in pattern if not isinstance(item, tuple)]
        return any(item in names for item in flat for names in named)
    return any(pattern in names for names in named)


def _dtypes_forbid(conf: Any, unit: QuantUnit, qconfig: Any) -> str:
    weight = qconfig.weight if "weight" in unit.roles else None
    for maker, bounds in (
        (qconfig.activation, conf.input_dtype_with_constraints),
        (qconfig.activation, conf.output_dtype_with_constraints),
        (weight, conf.weight_dtype_with_constraints),
    ):
        if maker is not None and bounds is not None and bounds.dtype is not None:
            reason = _constraint(observer_in(maker()), bounds)
            if reason:
                return reason
    return ""


def _constraint(observer: Any, bounds: Any) -> str:
    scheme = scheme_of(observer)
    if scheme is None:
        return ""
    if bounds.dtype.is_floating_point:
        return f"the BackendConfig wants {bounds.dtype}"
    wanted = make_scheme(dtype=bounds.dtype)
    if wanted.signed != scheme.signed and not str(bounds.dtype).endswith("32"):
        return f"the BackendConfig wants {bounds.dtype}, and the QConfig has {scheme}"
    low, high = bounds.quant_min_lower_bound, bounds.quant_max_upper_bound
    if (low is not None and scheme.quant_min < low) or (high is not None and scheme.quant_max > high):
        return f"the BackendConfig wants quantized values from {low} to {high}, and the QConfig has {scheme}"
    least = bounds.scale_min_lower_bound
    if least is not None and float(getattr(observer, "eps", least)) < least:
        return f"the BackendConfig wants scales from {least} on"
    if bounds.scale_exact_match is not None:  # sigmoid, tanh
        scale, zero_point = (getattr(observer, name, None) for name in ("scale", "zero_point"))
        if (
            scale is None
            or float(scale) != bounds.scale_exact_match
            or int(zero_point or 0) != bounds.zero_point_exact_match
        ):
            return f"the BackendConfig wants scale {bounds.scale_exact_match:g} and no other"
    return ""
