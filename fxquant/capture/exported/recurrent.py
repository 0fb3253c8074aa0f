"""Finds the calls of recurrent layers in a program, and builds the layers again at the paths where they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from fxquant.capture.exported.names import Kind, innermost, stack_of, torch_class_of
from fxquant.graph.query import attribute_at

_aten = torch.ops.aten
_KINDS: Mapping[Any, tuple[type[nn.RNNBase], int, dict[str, Any]]] = {
    _aten.lstm.input: (nn.LSTM, 4, {}),
    _aten.gru.input: (nn.GRU, 3, {}),
    _aten.rnn_tanh.input: (nn.RNN, 1, {"nonlinearity": "tanh"}),
    _aten.rnn_relu.input: (nn.RNN, 1, {"nonlinearity": "relu"}),
}
"""Operator -> the class of its layer, how many blocks of rows a matrix has, and arguments of the class."""
_CELLS: Mapping[Any, tuple[type[nn.RNNCellBase], int, dict[str, Any]]] = {
    _aten.lstm_cell.default: (nn.LSTMCell, 4, {}),
    _aten.gru_cell.default: (nn.GRUCell, 3, {}),
    _aten.rnn_tanh_cell.default: (nn.RNNCell, 1, {"nonlinearity": "tanh"}),
    _aten.rnn_relu_cell.default: (nn.RNNCell, 1, {"nonlinearity": "relu"}),
}
"""The same of the operators that compute one step."""
_CELL_TENSORS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@dataclass(frozen=True, slots=True)
class RecurrentCall:
    """A call of a recurrent layer, in place of an operator that takes its tensors."""

    path: str
    """Where the layer was in the user's model; the name of its class in small letters, where it was the whole model."""
    layer: nn.RNNBase | nn.RNNCellBase
    key: tuple[Any, ...]
    """Calls of one path and one key call the same layer."""
    args: tuple[Any, ...]
    """Nodes of the program: the input and, unless they are the layer's own zeros, the first states."""


def recurrent_call(node: Node, state: nn.Module) -> RecurrentCall | None:
    """Return the call of the layer that an operator of a program is; None where it is none of the user's.

    Args:
        node: A node of the program.
        state: Holds the program's tensors under their paths.
    """
    inside = next(reversed(stack_of(node).values()), None)  # its path is empty where the layer is the whole model
    if node.kwargs or inside is None:
        return None
    if node.target in _CELLS:
        return _cell_call(node, inside, state)
    if node.target not in _KINDS:
        return None
    # Read the arguments of aten's operator.
    kind, blocks, own = _KINDS[node.target]
    source, first, parameters, bias, layers, dropout, train, both_ways, batch_first = node.args
    if torch_class_of(inside[1]) is not kind or (train and dropout):
        return None
    # The sizes of the layer are those of its matrices.
    path, nodes = inside[0], list(parameters)  # type: ignore[arg-type]
    if not all(isinstance(one, Node) and one.op == "get_attr" for one in nodes):
        return None
    names = [_name_in(path, one) for one in nodes]
    tensors: list[Any] = [attribute_at(state, str(one.target)) for one in nodes]
    projected = names[2 + 2 * bool(bias) :][:1] == ["weight_hr_l0"]
    # Make the layer, and check that it has these parameters, under these names.
    given = {
        "num_layers": layers,
        "bias": bias,
        "dropout": dropout,
        "bidirectional": both_ways,
        "batch_first": batch_first,
        **({"proj_size": tensors[1].shape[1]} if projected else {}),
        **own,
    }
    layer = kind(tensors[0].shape[1], tensors[0].shape[0] // blocks, device="meta", **given)
    if names != [name for weights in layer._all_weights for name in weights]:
        return None
    for name, tensor in zip(names, tensors, strict=True):
        setattr(layer, name, _parameter(tensor))
    states = list(first) if isinstance(first, (list, tuple)) else [first]
    key = (kind, repr(given), *names)
    return RecurrentCall(path or kind.__name__.lower(), layer.eval(), key, _arguments(source, states, path))


def _cell_call(node: Node, inside: tuple[str, Kind], state: nn.Module) -> RecurrentCall | None:
    """Return the call of the layer that computes one step; None where it is none of the user's."""
    kind, blocks, own = _CELLS[node.target]
    source, first, *given = node.args
    nodes: list[Any] = [one for one in given if one is not None]
    if torch_class_of(inside[1]) is not kind or not all(
        isinstance(one, Node) and one.op == "get_attr" for one in nodes
    ):
        return None
    path = inside[0]
    names = tuple(_name_in(path, one) for one in nodes)
    if names not in (_CELL_TENSORS, _CELL_TENSORS[:2]):
        return None
    tensors: list[Any] = [attribute_at(state, str(one.target)) for one in nodes]
    arguments = {"bias": len(names) > 2, **own}
    layer = kind(tensors[0].shape[1], tensors[0].shape[0] // blocks, device="meta", **arguments)
    for name, tensor in zip(names, tensors, strict=True):
        setattr(layer, name, _parameter(tensor))
    states = list(first) if isinstance(first, (list, tuple)) else [first]
    key = (kind, repr(arguments), *names)
    return RecurrentCall(path or kind.__name__.lower(), layer.eval(), key, _arguments(source, states, path))


def _name_in(path: str, parameter: Node) -> str:
    """Return the name of a parameter in the module at a path."""
    return str(parameter.target).removeprefix(f"{path}." if path else "")


def state_of(layer: nn.Module, item: int) -> int | None:
    """Return which of the states of an LSTM an item of the operator's result is; None for what the layer gives itself.

    The operator gives three tensors, the layer a tensor and a pair.
    """
    return item - 1 if isinstance(layer, nn.LSTM) and item > 0 else None


def _arguments(source: Any, states: list[Any], path: str) -> tuple[Any, ...]:
    if all(one.target is _aten.zeros.default and (innermost(one) or ("",))[0] == path for one in states):
        return (source,)
    return source, tuple(states) if len(states) > 1 else states[0]


def _parameter(tensor: Tensor) -> nn.Parameter:
    if isinstance(tensor, nn.Parameter):
        return tensor
    return nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
