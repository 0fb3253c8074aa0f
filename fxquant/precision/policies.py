"""The policies of a unit's tensors with other bits, as ``prepare`` would plan them by a rule for the unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fxquant.errors import SpecError
from fxquant.fake_quantize.base import observer_in
from fxquant.passes.base import PassContext
from fxquant.passes.unit_building import observed_policy
from fxquant.patterns.pattern import Bounded
from fxquant.plan.precision import Choice
from fxquant.plan.qconfig import QConfig
from fxquant.plan.quant_plan import QuantUnit
from fxquant.plan.spec import Dynamic, Fixed, Observed, QParamsPolicy, QScheme, TensorRef
from fxquant.precision.choices import configured
from fxquant.precision.groups import outside_values


def policies_of(unit: QuantUnit, choice: Choice, base: QConfig, ctx: PassContext) -> dict[TensorRef, QParamsPolicy]:
    """Return the policies that a choice changes: of the weight, of the result, and of values that no unit makes.

    Args:
        unit: As planned.
        choice: One that is not float.
        base: The configuration that it was planned by.
        ctx: With the plan.
    """
    qconfig = configured(choice, base)
    assert qconfig is not None  # the choice is not float
    found: dict[TensorRef, QParamsPolicy] = {}
    for ref in dict.fromkeys((*unit.roles.values(), *outside_values(unit, ctx.plan))):
        policy = ctx.plan.policies.get(ref)
        if policy is None or ref.name in _of_other_units(unit, ctx):
            continue
        changed = _changed(ref, policy, unit, qconfig, base, ctx)
        if changed is not None:
            found[ref] = changed
    return found


def _of_other_units(unit: QuantUnit, ctx: PassContext) -> set[str]:
    """Return the names of the values that a unit reads and another unit makes."""
    made = {each.root for each in ctx.plan.units if "y" in each.roles}
    return {unit.roles[role].name for role in unit.inputs} & made - {unit.root}


def _changed(
    ref: TensorRef, policy: QParamsPolicy, unit: QuantUnit, qconfig: QConfig, base: QConfig, ctx: PassContext
) -> QParamsPolicy | None:
    output = ctx.pattern_of(unit).output
    if ref.kind == "parameter" and isinstance(policy, Observed):
        return Observed(_on_axis(qconfig.weight, policy.observer))
    if isinstance(policy, Dynamic) and qconfig.activation_scheme is not None:
        return replace(policy, scheme=qconfig.activation_scheme)
    if isinstance(policy, Observed):
        is_output = base.output is not None and policy.observer == base.output
        return observed_policy((is_output and qconfig.output) or qconfig.activation)
    if isinstance(policy, Fixed) and isinstance(output, Bounded) and ref == unit.roles.get("y"):
        return Fixed(output.qparams(qconfig.activation_scheme)) if qconfig.activation_scheme else None
    return None  # it has the qparams of another value, or those of its function


def _on_axis(observer: Callable[[], Any], planned: Callable[[], Any]) -> Callable[[], Any]:
    """Return the observer of a weight for the dimension that counts its output channels, as it was planned."""
    constructor: Any = observer
    scheme, axis = observer_in(observer()).scheme, observer_in(planned()).scheme.axis
    if scheme is None or scheme.axis is None or axis is None or scheme.axis == axis:
        return observer
    if getattr(constructor, "arguments", {}).get("scheme") is not None:
        changed: Callable[[], Any] = constructor.with_args(scheme=replace(scheme, axis=axis))
        return changed
    changed = constructor.with_args(ch_axis=axis)
    return changed


def refused_scheme(unit: QuantUnit, choice: Choice, base: QConfig, ctx: PassContext) -> str:
    """Say why the back end cannot run a unit with a choice; empty if it can."""
    if choice.is_float:
        return ""
    try:
        qconfig = configured(choice, base)
    except SpecError as error:
        return str(error).splitlines()[0]
    rule = ctx.backend.rule_for(ctx.pattern_of(unit))
    if rule is None or qconfig is None:
        return ""
    activation, weight = qconfig.activation_scheme, qconfig.weight_scheme
    if (base.activation_scheme is None) != (activation is None) or base.is_dynamic != qconfig.is_dynamic:
        return "it observes its activations in another way than the configuration"
    reason = _asked(rule.activation, activation) if set(unit.roles) != {"weight"} else None
    if reason is None and "weight" in unit.roles:
        reason = _asked(rule.weight, weight)
    return "" if reason is None else f"backend {ctx.backend.name!r}: {reason}"


def _asked(accepts: Callable[[QScheme], str | None], scheme: QScheme | None) -> str | None:
    return None if scheme is None else accepts(scheme)
