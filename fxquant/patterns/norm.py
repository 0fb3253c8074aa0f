"""Softmax and layer norm: they take float values, and give quantized ones where only integer operators read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from fxquant.kernels.norm.layer_norm import MOST_COLUMNS
from fxquant.patterns.linear import MATMUL
from fxquant.patterns.pattern import Pattern, Reject, all_of, op, tensor
from fxquant.patterns.shape import DATA_MOVEMENT, NOTHING
from fxquant.patterns.unary import UNIT_INTERVAL

SOFTMAX = op(F.softmax, torch._safe_softmax)(tensor("x")).named("softmax")
LAYER_NORM = op(nn.LayerNorm)(tensor("x")).named("norm")

_PASSING = frozenset(target for pattern in (*DATA_MOVEMENT, *NOTHING) for target in pattern.root.all_targets)


def along_one_dimension(captures: Mapping[str, Node]) -> Reject | None:
    """The dimension is known beforehand, and the result has the dtype of the input."""
    node = captures["softmax"]
    dim, dtype = softmax_arguments(node)
    if not isinstance(dim, int):
        return Reject(f"dim={dim}: the dimension is not known beforehand", node)
    return None if dtype is None else Reject(f"dtype={dtype}: it also changes the dtype", node)


def softmax_arguments(node: Node) -> tuple[Any, Any]:
    """Dimension and dtype of ``F.softmax(x, dim, _stacklevel, dtype)`` or ``torch._safe_softmax(x, dim, dtype)``."""
    places = {"dim": 1, "dtype": 3 if node.target is F.softmax else 2}
    dim, dtype = (node.args[at] if at < len(node.args) else node.kwargs.get(name) for name, at in places.items())
    return dim, dtype


def weighs_a_product(captures: Mapping[str, Node]) -> Reject | None:
    """In attention the values are small, one for each of many positions: a range of all numbers to 1 is too coarse."""
    waiting, seen = list(captures["softmax"].users), set()
    while waiting:
        node = waiting.pop()
        if node.target in MATMUL.targets:
            return None
        if node not in seen and _is_data_movement(node):
            seen.add(node)
            waiting += node.users
    return Reject("no product reads it", captures["softmax"])


def _is_data_movement(node: Node) -> bool:
    if node.op == "call_module":
        owner = node.graph.owning_module
        return owner is not None and type(owner.get_submodule(str(node.target))) in _PASSING
    return node.target in _PASSING


def short_rows(captures: Mapping[str, Node]) -> Reject | None:
    """Sums of squares are exact up to a number of columns that no layer has."""
    node = captures["norm"]
    owner = node.graph.owning_module
    layer: Any = None if owner is None else owner.get_submodule(str(node.target))
    columns = torch.Size(layer.normalized_shape).numel()
    if columns > MOST_COLUMNS:
        return Reject(f"{columns} columns: the sum of their squares may not fit an int64", node)
    return None


NORMALIZE = (
    Pattern("attention_weights", SOFTMAX, inputs=(), check=all_of(along_one_dimension, weighs_a_product)),
    Pattern("softmax", SOFTMAX, inputs=(), output=UNIT_INTERVAL, check=along_one_dimension),
    Pattern("layer_norm", LAYER_NORM, inputs=(), check=short_rows),
)
"""No input need be quantized: what makes it gives float values, if it can. Quantized values are taken, too."""
