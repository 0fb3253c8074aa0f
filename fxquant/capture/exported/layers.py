"""Builds the layers of the user's model again, of calls that take its parameters, at the paths where they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node

from fxquant.capture.exported.names import innermost, torch_class_of
from fxquant.graph.layers import LAYERS
from fxquant.graph.operators.spelling import canonical_call, operator_of
from fxquant.graph.query import KEEPS_STATISTICS, attribute_at


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A call of a layer, in place of a function that takes its tensors."""

    path: str
    """Where the layer was in the user's model."""
    layer: nn.Module
    key: tuple[Any, ...]
    """Calls of one path and one key call the same layer."""
    inputs: tuple[Any, ...]


def layer_call(call: Node, exported: Node, state: nn.Module, rank: int) -> LayerCall | None:
    """Return the call of the layer that a call of a function is; None where it is none of the user's.

    Args:
        call: Calls a function with tensors of the user's, in the graph that is made.
        exported: The node of the program that it was made of.
        state: Holds the program's tensors under their paths.
        rank: Number of dimensions of the first input.
    """
    read = _NORMS.get(call.target, _read_known)(call)
    if read is None:
        return None
    kinds, tensors, given, inputs, build = read
    path = _path_of(exported, kinds, tensors)
    if path is None:
        return None
    values = {name: None if node is None else attribute_at(state, str(node.target)) for name, node in tensors.items()}
    layer = build(values, given, rank)
    if layer is None:
        return None
    key = (type(layer), repr(given), *(None if node is None else node.target for node in tensors.values()))
    _take_count(layer, path, state)
    # A program does not say whether a batch norm trains. One whose weight is a buffer is a frozen one of the user's.
    if call.target is F.batch_norm and not isinstance(values["weight"], (NoneType, nn.Parameter)):
        vars(layer)[KEEPS_STATISTICS] = True
    return LayerCall(path, layer, key, inputs)


_Read = tuple[
    tuple[type[nn.Module], ...],
    dict[str, Node | None],
    Mapping[str, Any],
    tuple[Any, ...],
    Callable[[Mapping[str, Tensor | None], Mapping[str, Any], int], nn.Module | None],
]


def _read_known(call: Node) -> _Read | None:
    """Read a call of a function that the table of layers lists."""
    found = canonical_call(call) if call.target in LAYERS else None
    if found is None or found.kwargs or not LAYERS[found.target].kinds:
        return None
    row, known = LAYERS[found.target], operator_of(found.target)
    assert known is not None  # canonical_call read it
    given = dict(zip(known.parameters, found.args, strict=True))
    x = given.pop(known.parameters[0])
    tensors = {name: given.pop(name) for name in row.tensors}
    inputs = [x, *(given.pop(name) for name in row.inputs)]
    while inputs[-1] is None:
        inputs.pop()
    if any(isinstance(value, Node) for value in given.values()):
        return None
    return row.kinds, tensors, given, tuple(inputs), row.build


def _path_of(exported: Node, kinds: tuple[type[nn.Module], ...], tensors: Mapping[str, Node | None]) -> str | None:
    """Return the path of the user's layer: where the program says that the call stands, or where its tensors are."""
    nodes = [(name, node) for name, node in tensors.items() if node is not None]
    if any(not isinstance(node, Node) or node.op != "get_attr" for _, node in nodes):
        return None
    inside = innermost(exported)
    if inside is not None and (torch_class_of(inside[1]) in kinds):
        return inside[0]
    parents = {str(node.target).rpartition(".")[0] for _, node in nodes}
    named = all(str(node.target).rpartition(".")[2] == name for name, node in nodes)
    return parents.pop() or None if named and len(parents) == 1 else None


def _take_count(layer: nn.Module, path: str, state: nn.Module) -> None:
    """Give a batch norm the number of batches that it has seen: programs do not read it."""
    if "num_batches_tracked" in layer._buffers:
        try:
            count = attribute_at(state, f"{path}.num_batches_tracked")
        except AttributeError:
            return
        layer.num_batches_tracked = count


def _instance_norm(call: Node) -> _Read | None:
    x, mean, variance, weight, bias, by_input, momentum, eps = call.args
    if mean is not None or variance is not None or by_input is not True:
        return None
    given = {"eps": eps, "momentum": momentum}
    kinds = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
    tensors: Any = {"weight": weight, "bias": bias}

    def build(tensors: Mapping[str, Tensor | None], given: Mapping[str, Any], rank: int) -> nn.Module | None:
        scale = tensors["weight"]
        if scale is None or not 3 <= rank <= 5:
            return None
        return _holding(kinds[rank - 3](len(scale), affine=True, device="meta", **given), tensors)

    return kinds, tensors, given, (x,), build


def _group_norm(call: Node) -> _Read | None:
    x, groups, weight, bias, eps = call.args
    given = {"num_groups": groups, "eps": eps}
    tensors: Any = {"weight": weight, "bias": bias}

    def build(tensors: Mapping[str, Tensor | None], given: Mapping[str, Any], rank: int) -> nn.Module | None:
        scale = tensors["weight"]
        if scale is None or tensors["bias"] is None:
            return None
        return _holding(nn.GroupNorm(num_channels=len(scale), device="meta", **given), tensors)

    return (nn.GroupNorm,), tensors, given, (x,), build


def _holding(layer: nn.Module, tensors: Mapping[str, Tensor | None]) -> nn.Module:
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
        layer.register_parameter(name, tensor)
    return layer.eval()


_NORMS: Mapping[Any, Callable[[Node], _Read | None]] = {F.instance_norm: _instance_norm, F.group_norm: _group_norm}
