"""Layers that are given the tensors that a plain layer holds: what computes them trains."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.graph.constants import TensorComputation
from fxquant.graph.query import canonical_type

HOME = "_home"
"""Attribute of a layer whose tensors are given: where the plain layer belongs."""


class WithTensors:
    """A layer as its own ``forward`` sees it, with other tensors in place of its own."""

    def __init__(self, layer: nn.Module, tensors: Mapping[str, Tensor | None]) -> None:
        vars(self).update(tensors)
        self.layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)


class WithComputedTensors(nn.Module):
    """Runs a layer of torch on the tensors that it is given by name, in place of those that the layer holds.

    Args:
        layer: Its class is one of ``torch.nn``, or computes the same. It loses its tensors.
        given: Names of those that it will be given. The others, the ones of a batch norm without a weight say, are
            kept in ``fixed`` and are no part of the state: the user's model has none.
    """

    def __init__(self, layer: nn.Module, given: Collection[str]) -> None:
        super().__init__()
        self.layer = layer
        held: dict[str, Any] = {**layer._parameters, **layer._buffers}
        self.fixed = {name: held[name] for name in held if name not in given}
        without_tensors(layer, held)

    def forward(self, input: Tensor, *args: Any, **tensors: Tensor) -> Any:
        kind: Any = canonical_type(self.layer) or type(self.layer)
        return kind.forward(WithTensors(self.layer, tensors), input, *args)


class InPlaceTensor(TensorComputation):
    """Makes a tensor and changes it in place, as the nodes of a graph do.

    Args:
        graph: Its placeholders are what ``forward`` takes.
    """

    def __init__(self, program: GraphModule) -> None:
        super().__init__()
        self.program = program

    def forward(self, *tensors: Tensor) -> Any:
        return self.program(*tensors)


def without_tensors(layer: nn.Module, names: Iterable[str]) -> None:
    """Let a layer hold nothing under these names: they are given."""
    for name in names:
        (layer._buffers if name in layer._buffers else layer._parameters)[name] = None


def with_values(given: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """Return the layer that a ``WithComputedTensors`` runs, or a copy with its tensors of one that is given them.

    A parameter is held itself; anything else that stands for one becomes a frozen one.
    """
    layer = given.layer if isinstance(given, WithComputedTensors) else given
    held: Any = copy.copy(layer)
    held._parameters, held._buffers = dict(layer._parameters), dict(layer._buffers)
    if isinstance(given, WithComputedTensors):
        values = {**given.fixed, **values}
    for name, value in values.items():
        if name in held._buffers:
            held._buffers[name] = value
        elif value is None or isinstance(value, nn.Parameter):
            held._parameters[name] = value
        else:
            held._parameters[name] = nn.Parameter(value.detach().clone(memory_format=torch.preserve_format), False)
    return held
