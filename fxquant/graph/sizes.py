"""Finds the dimensions that have one size in every call that runs at all, since a layer makes it or insists on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, Node

from fxquant.graph.affine import BATCH_NORMS, ChannelAffine
from fxquant.graph.query import called_type, module_of, value_of

_SPATIAL: dict[Any, int] = {
    **{nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3},
    **{nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3},
}

_SAME: tuple[Any, ...] = (
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, F.dropout, F.dropout1d, F.dropout2d),
    *(F.relu, F.relu6, F.hardtanh, F.gelu, F.silu, F.mish, F.hardswish, F.elu, F.leaky_relu, F.softmax),
    *(torch.sigmoid, torch.tanh, "contiguous", "clone", torch.roll, "roll", torch.flip, "flip"),
)
"""Operators whose result has the shape of their first argument, whatever the others are: those are numbers."""


Dims = frozenset[int]
"""Dimensions, counted from 0."""

Known = Mapping[Node, Dims]


def fixed_dimensions(graph: Graph) -> dict[Node, Dims]:
    """Map every tensor to the dimensions that have the size of the example in every call."""
    known: dict[Node, Dims] = {}
    for node in graph.nodes:
        info = value_of(node)
        if info is None:
            continue
        every = frozenset(range(len(info.shape)))
        module = module_of(node)
        rule = _RULES.get(node.target if module is None else called_type(module))
        known[node] = (
            every if node.op == "get_attr" else every & rule(node, module, len(every), known) if rule else _NONE
        )
    return known


_NONE: Dims = frozenset()


def source_of_rank(value: Node) -> Node:
    """Return a value that has as many dimensions as ``value`` in every call: what the layer that makes it reads.

    Functions and batch norms may stand between. A value that no layer makes is the answer itself.
    """
    found = value
    while isinstance(source := value.args[0] if value.args else None, Node):
        module = module_of(value)
        kind = None if module is None else called_type(module)
        if kind is nn.Linear or kind in _SPATIAL:
            return source
        if kind in BATCH_NORMS:
            found = source
        elif (value.target if module is None else kind) not in _SAME:
            break
        value = source
    return found


def asks_for_rank(node: Node) -> bool:
    """Tell whether a node reads nothing of a tensor but the number of its dimensions."""
    arguments: Any = node.args
    if node.op == "call_method":
        return node.target in ("dim", "ndimension")
    if node.target is not getattr:
        return False
    return bool(arguments[1] == "ndim") or (arguments[1] == "shape" and all(user.target is len for user in node.users))


def _last(node: Node, module: Any, rank: int, known: Known) -> Dims:
    return frozenset({rank - 1})


def _channels(node: Node, module: Any, rank: int, known: Known) -> Dims:
    """Dimension 1, or, of a convolution without a batch, 0."""
    spatial = _SPATIAL.get(called_type(module))
    return frozenset({1 if spatial is None else rank - spatial - 1})


def _normalized(node: Node, module: Any, rank: int, known: Known) -> Dims:
    shape: Any = node.args[1] if module is None else module.normalized_shape
    if not isinstance(shape, (tuple, list)) or not all(isinstance(size, int) for size in shape):
        return _NONE
    return frozenset(range(rank - len(shape), rank))


def _as_first(node: Node, module: Any, rank: int, known: Known) -> Dims:
    source: Any = node.args[0] if node.args else None
    info = value_of(source) if isinstance(source, Node) else None
    return known[source] if info is not None and len(info.shape) == rank else _NONE


def _broadcast(node: Node, module: Any, rank: int, known: Known) -> Dims:
    """A size other than 1 of one operand is that of the result; a size of 1 only if those of the others are known too.

    Operands are all tensors among the arguments: the bounds of ``torch.clamp`` may be numbers or tensors.
    """
    sizes: list[dict[int, int | None]] = []
    for operand in node.all_input_nodes:
        info = value_of(operand)
        if info is not None:
            own, ahead = known[operand], rank - len(info.shape)
            sizes.append({ahead + i: size if i in own else None for i, size in enumerate(info.shape)})
    by_dim = {dim: [own[dim] for own in sizes if dim in own] for dim in range(rank)}
    return frozenset(
        dim for dim, found in by_dim.items() if None not in found or any(size not in (None, 1) for size in found)
    )


_RULES: dict[Any, Callable[[Node, Any, int, Known], Dims]] = {
    **dict.fromkeys((nn.Linear, nn.Embedding), _last),
    **dict.fromkeys((*_SPATIAL, *BATCH_NORMS), _channels),
    ChannelAffine: _as_first,
    **dict.fromkeys((nn.LayerNorm, F.layer_norm, nn.RMSNorm), _normalized),
    **dict.fromkeys(_SAME, _as_first),
    **dict.fromkeys((torch.add, torch.sub, torch.mul, torch.div, torch.clamp), _broadcast),
}
"""Function or type of a layer -> the fixed dimensions, told of a call, its module, the rank, and what came before."""
