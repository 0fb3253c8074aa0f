"""Replaces bounds that are tensors of one constant by the number that they hold."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from fxquant.graph.constants import Constants, NotConstantError, attributes_read
from fxquant.graph.edit import erase_unread
from fxquant.graph.query import value_of
from fxquant.passes.base import PassContext, graph_pass
from fxquant.patterns.elementwise import CLAMPS


@graph_pass(after=("normalize",), keeps_values=True)
def number_bounds(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``torch.clamp(x, self.low, torch.tensor(6.0))`` becomes a clamp between two numbers, which can be int8.

    Only where the bound has one element and gives the result neither its shape nor its dtype. What a state dict holds
    stays a tensor in models that train: it may change.
    """
    constants = Constants(gm)
    held = set(gm.state_dict()) if ctx.trains else set()
    for node in list(gm.graph.nodes):
        if node.target not in CLAMPS or node.op != "call_function" or not _is_of_input(node):
            continue
        numbers = {bound: _number(bound, constants, held) for bound in node.args[1:] if isinstance(bound, Node)}
        if numbers and None not in numbers.values():
            node.args = tuple(numbers.get(argument, argument) for argument in node.args)
            erase_unread(gm.graph, numbers)
    return gm


def _is_of_input(node: Node) -> bool:
    """Tell whether a clamp gives the shape and the dtype of the tensor that it clamps."""
    source: Any = node.args[0]
    before, after = value_of(source), value_of(node)
    return before is not None and after is not None and (before.shape, before.dtype) == (after.shape, after.dtype)


def _number(bound: Node, constants: Constants, held: set[str]) -> float | None:
    """Return the number that a bound holds; None of several, of one that may change, and of NaN."""
    if attributes_read(bound) & held:
        return None
    try:
        value: Any = constants.value(bound)
    except NotConstantError:
        return None
    if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
        return None
    number = float(value.detach())
    return None if math.isnan(number) else number
