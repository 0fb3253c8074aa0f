"""How the units of a model are configured, and by what rules their operators are meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fxquant.analysis.overrides import Address, addresses
from fxquant.graph.query import nodes_by_name
from fxquant.passes.base import PassContext
from fxquant.passes.qconfig_rules import rules_of_calls
from fxquant.plan.qconfig import QConfig
from fxquant.quantizer.quantizer import Quantizer
from fxquant.quantizer.run_passes import pass_context


@dataclass(frozen=True, slots=True)
class Configurations:
    """How the units of a model are configured."""

    qconfigs: Mapping[str, QConfig]
    """Root of a unit -> the configuration that it was planned by."""
    context: PassContext
    addresses: Mapping[str, tuple[Address, ...]]


def configurations(prepared: Quantizer) -> Configurations:
    """Find the configuration of each unit."""
    context = pass_context(prepared, prepared.plan)
    rules, nodes = rules_of_calls(prepared.graph_module, prepared.config), nodes_by_name(prepared.graph_module)
    found: dict[str, QConfig] = {}
    for unit in prepared.plan.units:
        weight = context.pattern_of(unit).weight_capture
        qconfig = rules[nodes[unit.captures[weight] if weight else unit.nodes[0]]].qconfig
        if qconfig is not None:
            found[unit.root] = qconfig
    units = prepared.plan.units
    return Configurations(found, context, addresses(prepared.graph_module, units, prepared.config))
