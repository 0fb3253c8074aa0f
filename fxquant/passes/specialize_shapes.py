"""Replaces sizes that are the same in every call by numbers, and guards units that hold for one rank only."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from fxquant.capture.trace_guards import require_answer, require_exported, require_rank
from fxquant.errors import user_line
from fxquant.graph.affine import ChannelAffine
from fxquant.graph.edit import erase_unread, substitute
from fxquant.graph.query import called_module, is_shape_query, module_of, nodes_by_name, value_of
from fxquant.graph.sizes import Dims, asks_for_rank, fixed_dimensions, source_of_rank
from fxquant.passes.base import PassContext, graph_pass

_MODULES = {module.__name__ for module in (math, builtins)} | {operator.add.__module__}
"""Where functions of numbers come from."""


@graph_pass(after=("normalize", "functional_to_module"), keeps_values=True)
def specialize_shapes(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``q * (x.shape[-1] // heads) ** -0.5`` after a layer becomes ``q * 0.125``: a number, which can be int8.

    Only of dimensions that a layer makes, or takes in that size alone; other resolutions and batches go on as before.
    The number of dimensions is asked of what a layer reads, so that nothing but the next operator reads what it makes.
    """
    fixed = fixed_dimensions(gm.graph)
    for node in list(gm.graph.nodes):
        if is_shape_query(node) and not node.users:
            gm.graph.erase_node(node)
            continue
        if asks_for_rank(node):
            source: Any = node.args[0]
            node.replace_input_with(source, source_of_rank(source))
        value = _computed(node) if (size := _size(node, fixed)) is None else size
        if value is not None:
            for reader in list(node.users):
                substitute(reader, node, value)
            erase_unread(gm.graph, [node])
        elif node.target in (require_answer, require_exported) and node.args[0] == node.args[1]:
            gm.graph.erase_node(node)  # a guard of what cannot be otherwise
    return gm


def _size(node: Node, fixed: Mapping[Node, Dims]) -> int | None:
    """Return the size that a node asks for: ``x.size(1)``, ``x.size()[1]`` or ``x.shape[1]``."""
    if node.target == "size" and len(node.args) == 2 and not node.kwargs:
        return _fixed_size(node.args[0], node.args[1], fixed)
    if node.target is not operator.getitem or not isinstance(node.args[0], Node):
        return None
    shape: Any = node.args[0]
    if (shape.target is getattr and shape.args[1] == "shape") or (shape.target == "size" and len(shape.args) == 1):
        return _fixed_size(shape.args[0], node.args[1], fixed)
    return None


def _fixed_size(source: Any, dim: Any, fixed: Mapping[Node, Dims]) -> int | None:
    info = value_of(source)
    if info is None or not isinstance(dim, int) or not -len(info.shape) <= dim < len(info.shape):
        return None
    dim %= len(info.shape)
    return info.shape[dim] if dim in fixed[source] else None


def _computed(node: Node) -> Any:
    """Compute what a function of numbers gives, where all of its arguments stand in the graph."""
    if node.op != "call_function" or getattr(node.target, "__module__", None) not in _MODULES or node.kwargs:
        return None
    if not node.args or not all(type(argument) in (int, float) for argument in node.args):
        return None
    function: Any = node.target
    value = function(*node.args)
    return value if type(value) in (int, float) else None


ONE_RANK = (nn.Linear, nn.Conv1d, nn.ConvTranspose1d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
"""Before a norm, or as one: on inputs of another rank, other dimensions count the channels of norm and layer."""


@graph_pass(after=("annotate",), keeps_values=True)
def guard_ranks(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``bn(linear(x))`` is one linear layer where x is [N, F]: for [N, L, F] the channels of the norm are L.

    Where the number of dimensions follows from an input of the model, it is asked of that input, once.
    """
    nodes, guarded = nodes_by_name(gm), set[tuple[Node, int]]()
    for unit in ctx.plan.units:
        norm = nodes.get(unit.captures.get("bn", ""))
        first = nodes[unit.nodes[0]]
        if norm is None or not _needs_one_rank(first, norm):
            continue
        source: Any = first.args[0]
        info = value_of(source)
        if info is None:
            continue
        if info.has_shape:
            asked, dims = source_of_rank(source), len(info.shape)
        else:  # without example inputs only convolutions get here: a batch of theirs has the rank of the weight
            asked, dims = source, called_module(first).weight.dim()
        if (asked, dims) in guarded:
            continue
        guarded.add((asked, dims))
        with gm.graph.inserting_before(first):
            rank = gm.graph.call_method("dim", (asked,))
            layers = " and ".join(dict.fromkeys(type(called_module(node)).__name__ for node in (first, norm)))
            gm.graph.call_function(require_rank, (rank, dims, f"{norm.target} ({layers})", user_line(norm)))
    return gm


def _needs_one_rank(first: Node, norm: Node) -> bool:
    """A ``ChannelAffine`` counts dimensions from the last one, as layers do; alone, its channels are dimension 1."""
    if isinstance(module_of(norm), ChannelAffine):
        return first is norm
    return isinstance(module_of(first), ONE_RANK)
