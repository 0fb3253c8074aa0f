"""Chooses the regions that a method is for, by the schemes of their weights."""

from __future__ import annotations

from collections.abc import Mapping

from fxquant.fake_quantize.base import observer_in
from fxquant.passes.base import weighted_nodes
from fxquant.plan.region import Region
from fxquant.plan.spec import Observed, QScheme
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.run_passes import pass_context

METHODS = ("auto", "weights")

NO_WEIGHT = "no weight that is quantized makes or reads it"
NORM_ALONE = "a norm makes it, which has no weight that is quantized"
PER_CHANNEL = "its weights have a scale for each channel"


def weight_schemes(prepared: PreparedModel) -> dict[str, QScheme]:
    """Return the scheme of each weight that is quantized, by the qualified name of its layer."""
    context = pass_context(prepared, prepared.plan)
    found: dict[str, QScheme] = {}
    for node, unit in weighted_nodes(prepared.graph_module, context):
        policy = prepared.plan.policies[unit.roles["weight"]]
        if isinstance(policy, Observed):
            found[str(node.target)] = observer_in(policy.observer()).scheme
    return found


def reason_against(region: Region, method: str, schemes: Mapping[str, QScheme]) -> str:
    """Return why a region is left as it is; empty if its channels are to be scaled."""
    if not region.channels:
        return region.reason
    sources = [end.behind or end.path for end in region.sources if end.kind == "rows" or end.behind]
    quantized = [schemes[path] for path in (*sources, *(end.path for end in region.sinks)) if path in schemes]
    if not quantized:
        return NO_WEIGHT
    if not sources:
        return NORM_ALONE
    if method == "auto" and any(scheme.axis is not None for scheme in quantized):
        return PER_CHANNEL
    return ""
