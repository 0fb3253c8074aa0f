"""Guards units that are right for one number of dimensions only."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from fxquant.capture.trace_guards import require_rank
from fxquant.errors import user_line
from fxquant.graph.affine import ChannelAffine
from fxquant.graph.query import called_module, module_of, nodes_by_name, value_of
from fxquant.graph.sizes import source_of_rank
from fxquant.passes.base import PassContext, graph_pass

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
        asked = source_of_rank(source)
        if info is None or (asked, len(info.shape)) in guarded:
            continue
        guarded.add((asked, len(info.shape)))
        with gm.graph.inserting_before(first):
            rank = gm.graph.call_method("dim", (asked,))
            layers = " and ".join(dict.fromkeys(type(called_module(node)).__name__ for node in (first, norm)))
            gm.graph.call_function(require_rank, (rank, len(info.shape), f"{norm.target} ({layers})", user_line(norm)))
    return gm


def _needs_one_rank(first: Node, norm: Node) -> bool:
    """A ``ChannelAffine`` counts dimensions from the last one, as layers do; alone, its channels are dimension 1."""
    if isinstance(module_of(norm), ChannelAffine):
        return first is norm
    return isinstance(module_of(first), ONE_RANK)
