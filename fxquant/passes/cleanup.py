"""Cleans the graph up after lowering: removes conversions that cancel, chooses memory layouts, removes dead code."""

from __future__ import annotations

from dataclasses import replace

from torch import nn
from torch.fx import GraphModule, Node

from fxquant.capture.trace_guards import GUARDS
from fxquant.graph.aliases import changed_argument
from fxquant.graph.edit import add_module, drop_unused_modules
from fxquant.graph.query import canonical_type, has_hooks, module_of, value_of
from fxquant.nn.quantize import Dequantize, Quantize, Requantize
from fxquant.passes.base import PassContext, graph_pass

IMAGE_RANK = 4


@graph_pass(after=("lower_units",), keeps_values=True)
def merge_requantize(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Replace ``quantize(dequantize(x))`` by ``x`` where both have the same qparams, else by one table look-up.

    The table holds ``clamp(round((q - z) * s / s') + z', q_min', q_max')`` of each quantized value ``q``: ``s``, ``z``
    are the scale and zero point that ``x`` is dequantized with, ``s'``, ``z'`` those that it is quantized with.
    """
    for node in list(gm.graph.nodes):
        quantize = module_of(node)
        if not isinstance(quantize, Quantize) or not isinstance(node.args[0], Node):
            continue
        dequantize = module_of(node.args[0])
        if not isinstance(dequantize, Dequantize):
            continue
        source, old, new = node.args[0].args[0], dequantize.qparams("x"), quantize.qparams("y")
        assert isinstance(source, Node)  # a dequantize module is called on a value
        if old.same_qparams(new):
            node.replace_all_uses_with(source)
        else:
            node.target = add_module(gm, f"{source.name}_requantize", Requantize(old, new))
            node.args = (source,)
    return gm


@graph_pass(after=("lower_units",), keeps_values=True)
def choose_layout(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Images become channels-last integers in the step that quantizes them."""
    for node in gm.graph.nodes:
        module, info = module_of(node), value_of(node)
        if isinstance(module, Quantize) and info is not None and len(info.shape) == IMAGE_RANK:
            module.channels_last = True
    return gm


@graph_pass(keeps_values=True)
def eliminate_dead_code(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Drop nodes without readers, unless running them has an effect; then modules never called, and units now gone."""
    erased: set[str] = set()
    for node in reversed(gm.graph.nodes):
        if not node.users and not has_effect(node):
            erased.add(node.name)
            gm.graph.erase_node(node)
    drop_unused_modules(gm)
    ctx.plan = replace(ctx.plan, units=tuple(unit for unit in ctx.plan.units if unit.root not in erased))
    return gm


def has_effect(node: Node) -> bool:
    """Tell whether a node must run although nothing reads its value.

    Inputs and outputs, checks, in-place changes, random numbers, and modules that may keep count of their calls: the
    user's own, those with hooks, and batch norms that still learn their statistics.
    """
    if node.op == "call_module":
        module = module_of(node)
        return changed_argument(node) is not None or module is None or not _is_pure(module)
    return node.is_impure() or changed_argument(node) is not None or node.target in GUARDS


def _is_pure(module: nn.Module) -> bool:
    if has_hooks(module) or getattr(module, "_is_impure", False):
        return False
    if type(module).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return True
    learns = module.training and any(True for _ in module.buffers())
    return canonical_type(module) is not None and not learns
