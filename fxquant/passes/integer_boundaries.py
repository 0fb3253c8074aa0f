"""Lets a converted model take and give quantized values: nothing is quantized or dequantized at its boundaries."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.errors import LoweringError
from fxquant.graph.edit import add_module, drop_unused_modules, insert_after
from fxquant.graph.query import VALUE, is_shape_query, module_of, value_of
from fxquant.nn.quantize import Dequantize, Quantize
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.boundary_names import integer_inputs, integer_outputs, keep_integers, returned
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import QParams, SharedWith, TensorRef


@graph_pass(after=("eliminate_dead_code",), required=True)
def integer_boundaries(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Units read inputs as they are given, ``q``, and floats are made of them, ``(q - z) * s``, for what stays float.

    What the model returns are the quantized values of units, before they are dequantized.
    """
    inputs = integer_inputs(gm, ctx.integer_inputs)
    for node in inputs:
        _take_integers(gm, node, _qparams_at(node, ctx.plan))
    (output,) = gm.graph.find_nodes(op="output")
    wanted = set(integer_outputs(gm, ctx.integer_outputs))
    places = iter(range(len(returned(gm))))
    output.args = map_arg(output.args, lambda node: _given_out(gm, node, ctx.plan) if next(places) in wanted else node)
    for node in reversed(list(gm.graph.nodes)):
        if not node.users and isinstance(module_of(node), (Quantize, Dequantize)):
            gm.graph.erase_node(node)
    drop_unused_modules(gm)
    keep_integers(gm, ctx.plan, [str(node.target) for node in inputs], sorted(wanted))
    return gm


def _take_integers(gm: GraphModule, node: Node, qparams: QParams) -> None:
    readers = [user for user in node.users if not is_shape_query(user)]
    quantized = [user for user in readers if isinstance(module_of(user), Quantize)]
    floats = [user for user in readers if user not in quantized]  # the output, too: what is returned is float
    info = value_of(node)
    if floats and info is not None:
        dequantize = Dequantize(qparams, info.dtype, info.contiguous).eval()
        dequantize.unit = node.name
        insert_after(node, add_module(gm, f"{node.name}_dequantize", dequantize), users=floats)
    for user in quantized:
        user.replace_all_uses_with(node)
    if info is not None:
        node.meta = {**node.meta, VALUE: replace(info, dtype=qparams.scheme.dtype)}


def _given_out(gm: GraphModule, node: Node, plan: QuantPlan) -> Node:
    """Return the node whose value stands for a float value: what was dequantized, or a quantize of its view."""
    source = node.args[0] if isinstance(module_of(node), Dequantize) else None
    if isinstance(source, Node):
        return source
    qparams = plan.qparams.get(TensorRef(node.name))
    if qparams is None or not _keeps_qparams(node, plan):
        raise LoweringError(
            "the model cannot give this value as integers: what computes it stays float after all",
            at=node,
            hint="the coverage of the converted model without integer_outputs says why",
        )
    info, quantize = value_of(node), Quantize(qparams).eval()
    quantize.unit = node.name
    made = insert_after(node, add_module(gm, f"{node.name}_quantize", quantize), users=())
    if info is not None:
        made.meta[VALUE] = replace(info, dtype=qparams.scheme.dtype)
    return made


def _keeps_qparams(node: Node, plan: QuantPlan) -> bool:
    """Tell whether a value is made of dequantized ones alone by what keeps their qparams: rounding changes none."""
    if isinstance(module_of(node), Dequantize):
        return True
    keeps = (
        isinstance(plan.policies.get(TensorRef(node.name)), SharedWith)
        and plan.qparams_factor(TensorRef(node.name)) == 1
    )
    sources = [each for each in node.all_input_nodes if _is_float(each)]
    return keeps and bool(sources) and all(_keeps_qparams(each, plan) for each in sources)


def _is_float(node: Node) -> bool:
    info = value_of(node)
    return info is None or info.dtype.is_floating_point


def _qparams_at(node: Node, plan: QuantPlan) -> QParams:
    qparams = plan.qparams.get(TensorRef(node.name))
    if qparams is None:
        raise LoweringError("no unit reads this input as integers after all", at=node)
    return qparams
