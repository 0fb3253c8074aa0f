"""Reads the rules that ``convert_fx`` is given once more: they may leave more in float, and change nothing else."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from fxquant.compat.configuration import KINDS, mapping_of
from fxquant.compat.qconfig import qconfig_equals
from fxquant.graph.query import nodes_by_name
from fxquant.passes.qconfig_rules import rules_of_calls
from fxquant.plan.quant_plan import Refusal
from fxquant.quantizer.quantizer import Quantizer


def without_units_left_in_float(
    quantizer: Quantizer, prepared: Mapping[str, Any], asked: Mapping[str, Any]
) -> Quantizer:
    """Return a Quantizer without the units for which the rules of ``convert_fx`` say None.

    Raises:
        AssertionError: they ask for other observers than those that were attached.
    """
    _check_same(prepared, asked)
    nodes = nodes_by_name(quantizer.graph_module)
    rules = rules_of_calls(quantizer.graph_module, mapping_of(asked))
    refused = [
        Refusal(unit.root, unit.pattern, "convert_fx was told to leave it in float", excused=True)
        for unit in quantizer.plan.units
        if all(rules[nodes[name]].qconfig is None for name in unit.nodes if nodes[name] in rules)
    ]
    made = copy.copy(quantizer)
    made.plan = quantizer.plan.with_observations({}, refused)
    return made


def _check_same(prepared: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for kind in KINDS:
        before = {tuple(key): qconfig for *key, qconfig in prepared.get(kind, ())}
        for *key, qconfig in asked.get(kind, ()):
            if qconfig is None:
                continue
            if tuple(key) not in before:
                raise AssertionError(f"Expected key {key} in convert qconfig_mapping to also be in prepare's")
            if not qconfig_equals(qconfig, before[tuple(key)]):
                raise AssertionError(
                    f"Expected convert QConfigMapping to have the same qconfig as prepare for key {key}"
                )
