"""What a user says of inputs and outputs that are quantized values: checked, and held against the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule, Node

from fxquant.errors import InputError, PlanError, UnknownNameError, listing
from fxquant.graph.query import value_of
from fxquant.passes.boundary_names import Inputs, Outputs, integer_inputs, integer_outputs, returned
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import TensorRef
from fxquant.registry import did_you_mean


def as_inputs(wanted: bool | str | Sequence[str]) -> Inputs:
    """Return names of arguments, or a truth value.

    Raises:
        InputError: it is neither.
    """
    if isinstance(wanted, bool):
        return wanted
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted) if isinstance(wanted, (list, tuple)) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise InputError("integer_inputs names no inputs", got=repr(wanted), expected="True, or names of arguments")
    return tuple(str(name) for name in names)


def as_outputs(wanted: bool | int | Sequence[int]) -> Outputs:
    """Return positions of results, or a truth value.

    Raises:
        InputError: it is neither.
    """
    if isinstance(wanted, bool):
        return wanted
    places: tuple[Any, ...] = (wanted,) if isinstance(wanted, int) else ()
    if isinstance(wanted, (list, tuple)):
        places = tuple(wanted)
    if (not places and wanted != () and wanted != []) or not all(type(place) is int and place >= 0 for place in places):
        expected = "True, or positions among the tensors that the model returns, from 0"
        raise InputError("integer_outputs names no results", got=repr(wanted), expected=expected)
    return places


def check_integer_requests(gm: GraphModule, plan: QuantPlan, inputs: Inputs, outputs: Outputs) -> None:
    """Refuse what the plan cannot take or give as quantized values.

    Raises:
        UnknownNameError: the model has no such input.
        InputError: it returns fewer tensors.
        PlanError: an input is read by no unit, or a result is computed by none; the message says why.
    """
    nodes = gm.graph.find_nodes(op="placeholder")
    names = [str(node.target) for node in nodes]
    for name in inputs if isinstance(inputs, tuple) else ():
        if name not in names:
            raise UnknownNameError(
                "the model has no input of this name",
                got=repr(name),
                expected=", ".join(names),
                hint=did_you_mean(name, names),
            )
    results = returned(gm)
    for place in outputs if isinstance(outputs, tuple) else ():
        if place >= len(results):
            raise InputError(
                "the model returns fewer tensors", got=f"integer_outputs={place}", expected=f"0 to {len(results) - 1}"
            )
    unread = [node for node in integer_inputs(gm, inputs) if TensorRef(node.name) not in plan.policies]
    computed = {unit.root for unit in plan.units if "y" in unit.roles}
    asked = [results[place] for place in integer_outputs(gm, outputs)]
    in_float = [node for node in asked if node.name not in computed or value_of(node) is None]
    if unread or in_float:
        reasons = {refusal.node: refusal.reason for refusal in plan.refusals}
        lines = [f"input {node.target}: {_why_not_read(node)}" for node in unread]
        lines += [f"result {node.name}: {_why_not_given(node, reasons.get(node.name))}" for node in in_float]
        raise PlanError(
            "the model cannot take or give these values as integers",
            got=listing(lines),
            expected="inputs that a quantized operator reads, and results that one computes",
            hint="name the others: integer_inputs=('x',), integer_outputs=(0,)",
        )


def _why_not_read(node: Node) -> str:
    info = value_of(node)
    if info is None or not info.dtype.is_floating_point:
        return "it is no float tensor"
    return "no quantized operator reads it"


def _why_not_given(node: Node, refused: str | None) -> str:
    if value_of(node) is None:
        return "it is several tensors in one value: return its items, as in (a, b)"
    return refused or "no unit computes it"
