"""Which inputs and results of a model are quantized values, and their qparams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from fxquant.errors import LoweringError
from fxquant.graph.module import set_metadata
from fxquant.graph.query import module_of, nodes_in, tensors_of, value_of
from fxquant.nn.base import QuantizedModule
from fxquant.nn.quantize import Quantize
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import QParams, TensorRef

Inputs = bool | tuple[str, ...]
"""Names of the arguments that are given as quantized values; True: all that are float tensors."""
Outputs = bool | tuple[int, ...]
"""Positions among the tensors that a model returns; True: all float ones."""


def integer_inputs(gm: GraphModule, wanted: Inputs) -> list[Node]:
    """Return the placeholders that are meant: those of the names, or all that are float tensors."""
    found = []
    for node in gm.graph.find_nodes(op="placeholder"):
        info = value_of(node)
        is_float = info is not None and info.dtype.is_floating_point
        if is_float if wanted is True else wanted is not False and str(node.target) in wanted:
            found.append(node)
    return found


def returned(gm: GraphModule) -> list[Node]:
    """Return the nodes whose values a model returns, in their order."""
    (output,) = gm.graph.find_nodes(op="output")
    return nodes_in(output.args)


def integer_outputs(gm: GraphModule, wanted: Outputs) -> list[int]:
    """Return the positions that are meant: those given, or those of all float tensors."""
    if wanted is not True:
        return [] if wanted is False else list(wanted)
    places = enumerate(returned(gm))
    return [place for place, node in places if any(info.dtype.is_floating_point for info in tensors_of(node))]


def given_as_integers(gm: GraphModule, wanted: Outputs) -> set[str]:
    """Return the names of the nodes of a float graph that are to be returned as quantized values."""
    nodes = returned(gm)
    return {nodes[place].name for place in integer_outputs(gm, wanted) if place < len(nodes)}


def keep_integers(gm: GraphModule, plan: QuantPlan, inputs: Sequence[str], outputs: Sequence[int]) -> None:
    """Keep beside a converted model what it takes and gives as quantized values: their qparams by name and position.

    Raises:
        LoweringError: the plan knows none.
    """
    names: Mapping[Any, Node] = {str(node.target): node for node in gm.graph.find_nodes(op="placeholder")}
    nodes = dict(enumerate(returned(gm)))
    taken = {name: _known(names.get(name), plan) for name in inputs}
    set_metadata(gm, integer_inputs=taken, integer_outputs={place: _known(nodes.get(place), plan) for place in outputs})


def _known(node: Node | None, plan: QuantPlan) -> QParams:
    """Return the qparams of a node that holds quantized values, or of the float value that they stand for.

    They are those of a module that takes or gives the value, or another value on the same qparams, where there is one:
    a state that is loaded changes them.
    """
    source = node.args[0] if node is not None and isinstance(module_of(node), Quantize) else node
    ref = TensorRef(source.name) if isinstance(source, Node) else None
    for each in () if node is None else (node, *_on_the_same_qparams(node, ref, plan)):
        if (own := _of_module(each)) is not None:
            return own
    qparams = None if ref is None else plan.qparams.get(ref)
    if qparams is None:
        raise LoweringError("the plan has no qparams of what is to be taken or given as integers", at=node)
    return qparams


def _on_the_same_qparams(node: Node, ref: TensorRef | None, plan: QuantPlan) -> Iterator[Node]:
    """Yield the other nodes of a graph whose values have the qparams of a tensor of the plan: views and pools of it."""
    if ref is None or ref not in plan.policies:
        return
    wanted = plan.qparams_owner(ref), plan.qparams_factor(ref)
    for other in node.graph.nodes:
        named = TensorRef(other.name)
        if named in plan.policies and (plan.qparams_owner(named), plan.qparams_factor(named)) == wanted:
            yield other


def _of_module(node: Node) -> QParams | None:
    """Return the qparams that a module holds of a value: of one that gives it, or of one that reads it."""
    made_by = module_of(node)
    if isinstance(made_by, QuantizedModule) and "y" in made_by._schemes:
        return made_by.qparams("y")
    for reader in node.users:
        read_by = module_of(reader)
        if not isinstance(read_by, QuantizedModule) or isinstance(read_by, Quantize):
            continue
        roles = [role for role in read_by._schemes if role not in ("weight", "y")]  # in the order of the arguments
        for role, arg in zip(roles, reader.args, strict=False):
            if arg is node:
                return read_by.qparams(role)
    return None
