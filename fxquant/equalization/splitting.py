"""Finds the norms that are worth a second one: layers read them, and so does what cannot be scaled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from torch import nn
from torch.fx import GraphModule, Node

from fxquant.equalization.layers import LAYERS
from fxquant.equalization.operators import is_data_movement, rule_of
from fxquant.graph.query import called_module, canonical_type, is_shape_query, module_of
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.region import FIXED, Region, Split
from fxquant.plan.spec import SharedWith, TensorRef

SECOND = "_scaled"
"""Behind the name of a norm: that of the second one."""


def find_splits(gm: GraphModule, plan: QuantPlan, regions: Sequence[Region]) -> tuple[Split, ...]:
    """Return the norms of a graph, in its order, of which no channel can be scaled as it is.

    Left out are norms that are called several times, and those beside what only training does, such as a dropout.
    """
    whole = {
        end.path for region in regions for end in region.sources if end.kind == "norm" and {*end.factors} <= {FIXED}
    }
    calls = Counter(str(node.target) for node in gm.graph.nodes if node.op == "call_module")
    idle = {name for call in plan.idle for name in (*call.inputs, *(reader for reader, _ in call.readers))}
    found = []
    for node in gm.graph.nodes:
        path = str(node.target)
        if node.op != "call_module" or path not in whole or calls[path] > 1 or node.name in idle:
            continue
        if canonical_type(called_module(node)) is not nn.LayerNorm:
            continue
        readers = tuple(reader.name for reader in node.users if _feeds_layers(reader))
        others = [reader for reader in node.users if reader.name not in readers and not is_shape_query(reader)]
        if readers and others and _can_be_planned(plan, node, readers) and not _is_taken(gm, path + SECOND):
            found.append(Split(path, path + SECOND, readers))
    return tuple(found)


def _feeds_layers(node: Node) -> bool:
    """Tell whether a node is a layer, or moves values that nothing but layers read."""
    if rule_of(node) is None:
        return False
    module = module_of(node)
    if module is not None and canonical_type(module) in LAYERS:
        return True
    return is_data_movement(node) and bool(node.users) and all(map(_feeds_layers, node.users))


def _can_be_planned(plan: QuantPlan, norm: Node, readers: Collection[str]) -> bool:
    """Tell whether the norm is a unit alone with qparams of its own, and no unit reads it in both ways."""
    if isinstance(plan.policies.get(TensorRef(norm.name)), SharedWith):
        return False
    all_readers = {reader.name for reader in norm.users}
    for unit in plan.units:
        if norm.name in unit.nodes and unit.nodes != (norm.name,):
            return False
        members = all_readers.intersection(unit.nodes)
        if members and not members <= {*readers} and not members.isdisjoint(readers):
            return False
    return True


def _is_taken(gm: GraphModule, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    return hasattr(gm.get_submodule(parent), name)
