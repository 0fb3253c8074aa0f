"""Chooses the regions that a method is for, by the schemes of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fxquant.equalization.smoothing import SinkSchemes
from fxquant.fake_quantize.base import observer_in
from fxquant.passes.base import weighted_nodes
from fxquant.plan.region import Region
from fxquant.plan.spec import Observed, QScheme
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.run_passes import pass_context

METHODS = ("auto", "weights", "smooth")

NO_WEIGHT = "no weight that is quantized makes or reads it"
NORM_ALONE = "a norm makes it, which has no weight that is quantized"
PER_CHANNEL = "its weights have a scale for each channel"
NO_SINK = "no layer that reads it is quantized"
NO_VALUES = "only data tells how large queries and keys are, and only the ranges of weights are asked for"


def weight_schemes(prepared: PreparedModel) -> dict[str, QScheme]:
    """Return the scheme of each weight that is quantized, by the qualified name of its layer."""
    context = pass_context(prepared, prepared.plan)
    found: dict[str, QScheme] = {}
    for node, unit in weighted_nodes(prepared.graph_module, context):
        policy = prepared.plan.policies[unit.roles["weight"]]
        if isinstance(policy, Observed):
            found[str(node.target)] = observer_in(policy.observer()).scheme
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """What is done with a region."""

    method: str = ""
    """``"weights"``, ``"smooth"`` or, for queries and keys, ``"products"``; empty: it is left as it is."""
    reason: str = ""
    """Why it is left."""


def choice_for(region: Region, method: str, schemes: Mapping[str, QScheme], *, with_data: bool) -> Choice:
    """Choose what is done with a region."""
    if not region.channels:
        return Choice(reason=region.reason)
    if region.products:
        by_values = with_data and method != "weights"
        return Choice("products") if by_values else Choice(reason=NO_VALUES)
    sources = [end.behind or end.path for end in region.sources if end.kind == "rows" or end.behind]
    quantized = [schemes[path] for path in (*sources, *(end.path for end in region.sinks)) if path in schemes]
    if not quantized:
        return Choice(reason=NO_WEIGHT)
    by_values = method == "smooth" or (method == "auto" and with_data)
    if by_values and not any(end.path in schemes for end in region.sinks):
        return Choice(reason=NO_SINK)
    if method == "smooth":
        return Choice("smooth")
    if not sources:
        return Choice("smooth") if by_values else Choice(reason=NORM_ALONE)
    if method == "auto" and any(scheme.axis is not None for scheme in quantized):
        return Choice("smooth") if by_values else Choice(reason=PER_CHANNEL)
    return Choice("weights")


def sink_schemes(prepared: PreparedModel) -> dict[str, SinkSchemes]:
    """Return how the layers round that read values with observed qparams, by qualified name."""
    context = pass_context(prepared, prepared.plan)
    policies = prepared.plan.policies
    found: dict[str, SinkSchemes] = {}
    for node, unit in weighted_nodes(prepared.graph_module, context):
        weight, x = policies[unit.roles["weight"]], unit.roles.get("x")
        owner = policies[prepared.plan.qparams_owner(x)] if x is not None and x in policies else None
        if isinstance(weight, Observed) and isinstance(owner, Observed):
            found[str(node.target)] = SinkSchemes(observer_in(owner.observer()).scheme, weight.observer)
    return found
