"""Follows channels through layers: their weights end one set of factors and begin another; norms begin one."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import Node

from fxquant.equalization.tracker import Result, Rule, Tracked, Tracker, shape_of
from fxquant.graph.affine import BATCH_NORMS, ChannelAffine
from fxquant.graph.macs import CONVOLUTIONS, TRANSPOSED
from fxquant.graph.query import called_module, canonical_type, module_of

LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)
"""Layers with a weight whose rows make channels, and whose columns read them."""


def channel_axis(layer: Any) -> int:
    """Return the dimension that counts the channels of what a layer reads and gives, from the end."""
    return -1 if isinstance(layer, nn.Linear) else 1 - int(layer.weight.dim())


def _layer(tracker: Tracker, node: Node) -> Result:
    """Read the channels of the input, and make those of the output."""
    layer = called_module(node)
    if layer._parameters.get("weight") is None:
        return f"the weight of {node.target} is computed in each call"
    axis = channel_axis(layer)
    inputs, outputs = _sizes(layer)
    ids = tracker.parameter(layer.weight, inputs + outputs)
    columns, rows = ids[:inputs], ids[inputs:]
    tracker.same(layer.bias, rows)
    tracker.end(node, "columns", columns)
    tracker.end(node, "rows", rows)
    tracker.read(node, columns, axis)
    if node.users and all(_is_batch_norm(reader) for reader in node.users):
        tracker.folded.add(str(node.target))
    return Tracked(axis, rows)


def _sizes(layer: Any) -> tuple[int, int]:
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels


def _is_batch_norm(node: Node) -> bool:
    module = module_of(node)
    return module is not None and (isinstance(module, ChannelAffine) or canonical_type(module) in BATCH_NORMS)


def _batch_norm(tracker: Tracker, node: Node) -> Result:
    """Its statistics are those of the input, which keeps its scale; its weight and bias make the output."""
    module, shape = called_module(node), shape_of(node)
    if shape is None:
        return f"the shape of {node.name} is not known"
    axis = -1 - module.behind if isinstance(module, ChannelAffine) else 1 - len(shape)
    source: Any = node.args[0]
    layer = module_of(source)
    behind = ""
    if layer is not None and canonical_type(layer) in LAYERS and channel_axis(layer) == axis:
        behind = str(source.target)
    return _norm(tracker, node, axis, behind)


def _layer_norm(tracker: Tracker, node: Node) -> Result:
    module = called_module(node)
    if len(module.normalized_shape) != 1:
        return f"{node.name} normalizes several dimensions"
    return _norm(tracker, node, -1)


def _group_norm(tracker: Tracker, node: Node) -> Result:
    """Group and instance norms have their channels after the batch."""
    shape = shape_of(node)
    if shape is None:
        return f"the shape of {node.name} is not known"
    return _norm(tracker, node, 1 - len(shape))


def _norm(tracker: Tracker, node: Node, axis: int, behind: str = "") -> Result:
    module = called_module(node)
    if module._parameters.get("weight") is None:
        return f"{node.name} normalizes it, and has no weight to scale"
    read = tracker.of(node.args[0])
    if read is not None:
        tracker.channels.fix(read.ids, f"{node.name} normalizes it")
    ids = tracker.parameter(module.weight, len(module.weight))
    tracker.same(module.bias, ids)
    tracker.end(node, "norm", ids, behind)
    return Tracked(axis, ids)


LAYER_RULES: dict[Any, Rule] = {
    **dict.fromkeys(LAYERS, _layer),
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
    nn.LayerNorm: _layer_norm,
    **dict.fromkeys((nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _group_norm),
}
"""Class of torch -> the rule of its calls."""
