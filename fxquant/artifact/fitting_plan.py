"""Checks that a plan of a file is one of the graph in it: conversion relies on what prepare has made sure of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from fxquant.artifact.values import fits
from fxquant.errors import ArtifactError, listing
from fxquant.graph.query import module_of, nodes_by_name
from fxquant.graph.recurrent import is_recurrent
from fxquant.patterns.pattern import Pattern
from fxquant.patterns.registry import known_patterns
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import Dynamic, Handled, Means, Observed, TensorRef
from fxquant.quantizer.integer_requests import as_outputs, check_integer_requests


def pattern_names(needed: Any) -> dict[str, Pattern]:
    """Return the patterns that are known here, by name.

    Args:
        needed: Names of those that the file needs beside the default ones.

    Raises:
        ArtifactError: some are not known.
    """
    known = {pattern.name: pattern for pattern in known_patterns() if pattern.handler is None}
    if not isinstance(needed, list) or not all(isinstance(name, str) for name in needed):
        raise ArtifactError("the file names no patterns", got=ascii(needed)[:120])
    if missing := [ascii(name)[:80] for name in needed if name not in known]:
        raise ArtifactError(
            "the model was prepared with patterns that are not registered here",
            got=listing(missing),
            hint="import the module that registers them before the file is loaded",
        )
    return known


def check_plan(plan: QuantPlan, gm: GraphModule, patterns: Mapping[str, Pattern]) -> None:
    """Refuse a plan that names what the graph has not.

    Raises:
        ArtifactError: it says which unit or tensor.
    """
    nodes = nodes_by_name(gm)
    order = {name: index for index, name in enumerate(nodes)}
    seen: set[str] = set()
    for unit in plan.units:
        _check_unit(unit, plan, nodes, patterns)
        if seen & {*unit.nodes} or sorted(unit.nodes, key=order.__getitem__) != list(unit.nodes):
            raise ArtifactError("a unit in the file has nodes of another one, or in another order", at=unit.root)
        seen.update(unit.nodes)
    if strange := [refusal.node for refusal in plan.refusals if refusal.node not in nodes]:
        raise ArtifactError("the file gives a reason for a node that is none", got=ascii(strange[0])[:120])
    for ref, policy in plan.policies.items():
        value = policy.value if isinstance(policy, Means) else ref.name
        if (ref.kind == "activation" or isinstance(policy, Means)) and value not in nodes:
            raise ArtifactError("the file plans a value that the graph has not", got=ascii(ref.name)[:120])
        fits = isinstance(policy, {"parameter": Observed, "call": Dynamic, "mean": Means}.get(ref.kind, object))
        if not fits or isinstance(policy, Handled):
            raise ArtifactError("the file plans a value in a way that it cannot be", got=ascii(ref.name)[:120])


def _check_unit(unit: QuantUnit, plan: QuantPlan, nodes: Mapping[str, Node], patterns: Mapping[str, Pattern]) -> None:
    pattern = patterns.get(unit.pattern)
    if pattern is None or not unit.nodes or not {*unit.nodes, *unit.captures.values()} <= nodes.keys():
        raise ArtifactError(
            "a unit in the file is of no pattern, or of nodes that the graph has not", at=ascii(unit.nodes)
        )
    known = all(isinstance(ref, TensorRef) and (ref in plan.policies) for ref in unit.roles.values())
    if not known or not {*unit.inputs} <= unit.roles.keys():
        raise ArtifactError("a unit in the file reads tensors that are not planned", at=unit.root)
    if ("weight" in unit.roles) != bool(pattern.weight_capture):
        raise ArtifactError("a unit in the file has a weight that its pattern has not, or none", at=unit.root)
    if pattern.weight_capture:
        node = nodes.get(unit.captures.get(pattern.weight_capture, ""))
        module: Any = None if node is None else module_of(node)
        if not is_recurrent(module) and not isinstance(getattr(module, "weight", None), Tensor):
            raise ArtifactError("a unit in the file has no layer with a weight", at=unit.root)


def check_boundaries(plan: QuantPlan, gm: GraphModule, inputs: Any, outputs: Any) -> None:
    """Refuse inputs and results as integers that the plan cannot take and give.

    Raises:
        ArtifactError: they are no names and no positions.
        FxQuantError: the model has none of that name or position, or it stays float.
    """
    if not fits(inputs, bool | tuple[str, ...]) or not fits(outputs, bool | tuple[int, ...]):
        raise ArtifactError("the file names no inputs and results as integers", got=ascii([inputs, outputs])[:120])
    check_integer_requests(gm, plan, inputs, as_outputs(outputs))


def weight_nodes(plan: QuantPlan) -> dict[str, str]:
    """Root of each unit with a weight -> name of the node that calls its layer."""
    patterns = {pattern.name: pattern for pattern in known_patterns()}
    found = {unit.root: unit.captures.get(patterns[unit.pattern].weight_capture or "") for unit in plan.units}
    return {root: name for root, name in found.items() if name is not None}
