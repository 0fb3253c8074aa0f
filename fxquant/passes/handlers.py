"""Makes the handlers that users registered for their patterns, and asks which units they decline."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.fx import Graph, GraphModule, Node

from fxquant.graph.edit import add_module
from fxquant.graph.query import nodes_by_name
from fxquant.patterns.pattern import Pattern
from fxquant.plan.quant_plan import QuantPlan, Refusal
from fxquant.plan.spec import QParams, TensorRef


class HandlerView:
    """Shows the plan to the ``quantize`` method of a handler, as ``quantizer``."""

    def __init__(self, gm: GraphModule, plan: QuantPlan) -> None:
        self.root = gm
        self.modules: dict[str, nn.Module] = dict(gm.named_modules())
        self.quantized_graph: Graph = gm.graph
        self._plan = plan

    def qparams(self, node: Node | str) -> QParams:
        """Return the qparams of a value of the model."""
        return self._plan.qparams[TensorRef(node if isinstance(node, str) else node.name)]

    def add_module(self, name: str, module: nn.Module) -> str:
        """Put a module into the converted model; the answer is the target to call it by."""
        return add_module(self.root, name, module)


def make_handlers(quantizer: object, gm: GraphModule, plan: QuantPlan, patterns: Sequence[Pattern]) -> dict[str, Any]:
    """Root of each unit that a handler quantizes -> a handler of its own, which may ask the quantizer and the root."""
    kinds = {pattern.name: pattern.handler for pattern in patterns if pattern.handler is not None}
    nodes, lowered = nodes_by_name(gm), dict[str, Any]()
    for unit in plan.units:
        if unit.pattern in kinds:
            kind = kinds[unit.pattern]
            takes = len(inspect.signature(kind).parameters)
            lowered[unit.root] = kind(quantizer, nodes[unit.root]) if takes >= 2 else kind()
    return lowered


def declined_by_handlers(gm: GraphModule, plan: QuantPlan, handlers: Mapping[str, Any]) -> list[Refusal]:
    """Return the units whose handler answers NotImplemented, found out on a copy so that every form knows of it.

    Args:
        gm: The float graph.
        plan: With the qparams of all values.
        handlers: By the roots of their units.
    """
    if not handlers:
        return []
    scratch = copy.deepcopy(gm)
    nodes, view = nodes_by_name(scratch), HandlerView(scratch, plan)
    refused = []
    for unit in plan.units:
        handler = handlers.get(unit.root)
        if handler is None:
            continue
        with scratch.graph.inserting_before(nodes[unit.root]):
            answer = handler.quantize(view, nodes[unit.root], lambda arg: arg)
        if answer is NotImplemented:
            refused.append(Refusal(unit.root, unit.pattern, "its handler declined (NotImplemented)"))
    return refused
