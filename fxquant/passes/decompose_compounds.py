"""Takes operators apart that hide others, where these can be quantized: einsum, addmm, gated linear units."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from fxquant.graph.constants import Constants
from fxquant.graph.decompositions.compounds import COMPOUNDS
from fxquant.graph.edit import Emitter, replace_node
from fxquant.graph.query import REASON, WHOLE, module_path, reason_of, value_of
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.configure import decide, own_targets, quantizes_part


@graph_pass(after=("normalize",), keeps_values=True)
def decompose_compounds(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Write ``torch.einsum`` as a matrix product, ``torch.addmm`` as one and a sum, ``F.glu`` as gate and product.

    A rule of the configuration that names the operator decides for its parts. What the configuration leaves in float,
    what a user's own pattern names, and what is made of constants alone stays one operator.
    """
    theirs, decisions, constants = own_targets(ctx), decide(gm, ctx.config), Constants(gm)
    for node in list(gm.graph.nodes):
        compound = COMPOUNDS.get(node.target) if node.op == "call_function" else None
        if compound is None or node.target in theirs or reason_of(node) or not _is_known(node):
            continue
        whole = (module_path(node)[0], decisions[node].rule)
        if not any(quantizes_part(part, whole[0], whole, ctx) for part in compound.parts):
            continue
        if constants.holds(node):
            continue
        new = compound.emit(Emitter(gm, node, {WHOLE: whole}), node, constants.holds)
        if isinstance(new, str):
            node.meta[REASON] = new
        elif new in node.all_input_nodes:
            node.replace_all_uses_with(new)
            gm.graph.erase_node(node)
        else:
            replace_node(node, new)
    return gm


def _is_known(node: Node) -> bool:
    """Whether the values of a call and of all its arguments were seen, and are real."""
    infos = [value_of(node), *map(value_of, node.all_input_nodes)]
    return all(info is not None and info.dtype.is_floating_point for info in infos)
