"""Units of a simulation that have a weight: which node calls the layer, and which layers a method leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from fxquant.graph.query import called_module, module_of, nodes_by_name
from fxquant.graph.recurrent import is_recurrent
from fxquant.nn.fake_quantize import FakeQuantizedWeight
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import QScheme

Refusal = Callable[[Any, QScheme, Any], str]
"""Takes a layer, the scheme of its weight, and the layer whose integers are known already or None; gives the reason why
the method leaves the layer as it is, empty if it does not."""


@dataclass(frozen=True, slots=True)
class Left:
    """A unit with a weight that a method leaves as it is."""

    unit: str
    reason: str


def split_by_refusal(
    simulated: GraphModule, plan: QuantPlan, own: Mapping[str, Any], refusal: Refusal
) -> tuple[list[tuple[QuantUnit, Node]], list[Left]]:
    """Return the units with a weight that a method takes, each with the node of its layer, and the others.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave.
        plan: Its plan, with qparams.
        own: Layers whose integers are known already, under the roots of their units.
        refusal: Says why a layer is left out.
    """
    nodes = nodes_by_name(simulated)
    taken: list[tuple[QuantUnit, Node]] = []
    left: list[Left] = []
    for unit in plan.units:
        if "weight" not in unit.roles:
            continue
        node, scheme = layer_node(unit, nodes), plan.qparams[unit.roles["weight"]].scheme
        if reason := refusal(called_module(node), scheme, own.get(unit.root)):
            left.append(Left(unit.root, reason))
        else:
            taken.append((unit, node))
    return taken, left


def layer_node(unit: QuantUnit, nodes: Mapping[str, Node]) -> Node:
    """Return the node of a unit of the simulation that calls the layer with the weight."""
    calls = (nodes[name] for name in unit.nodes)
    return next(node for node in calls if isinstance(module_of(node), FakeQuantizedWeight))


def refused_kind(layer: nn.Module) -> str:
    """Return why a layer of this kind has no one matrix that inputs are multiplied by; empty if it has."""
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        return "a table is read, not multiplied"
    if is_recurrent(layer):
        return "it multiplies by several matrices, step after step"
    return ""
