"""Puts a Quantizer together again from its parts: without the model that it was prepared from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.backends.base import backend_of
from fxquant.calibration.joined_ranges import Part
from fxquant.graph.inputs import bind
from fxquant.graph.query import move_to_device_of
from fxquant.patterns.registry import known_patterns
from fxquant.plan.qconfig import QConfigMapping
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import QParams, TensorRef
from fxquant.quantizer.attach_observers import attach_no_statistics, attach_observers_and_statistics
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.mutation import WeightChecksums
from fxquant.quantizer.quantizer import Quantizer


@dataclass(frozen=True, slots=True)
class Parts:
    """Holds what a Quantizer is beside its float graph."""

    backend: str
    config: QConfigMapping
    example_args: tuple[Any, ...]
    example_kwargs: dict[str, Any]
    input_observer: Callable[[], Any] | None
    plan: QuantPlan
    trained: Mapping[TensorRef, QParams] | None
    """The qparams that the model was trained with; None if it was not."""
    learned: Mapping[TensorRef, QParams]
    """The qparams of activations that were learned."""
    joins: Mapping[str, Sequence[tuple[str, float, float]]]
    """Of a model that was trained: name of each join -> name and range of each value that it takes."""
    weight_layers: Mapping[str, nn.Module]
    """Root of a unit -> a module whose ``weight_fake_quant`` knows the integers."""
    warned: set[tuple[str, str]]
    integer_inputs: bool | tuple[str, ...]
    integer_outputs: bool | tuple[int, ...]
    state: Mapping[str, Tensor]
    """The state of the observers and of the statistics; its names begin with ``observers.`` and ``statistics.``."""


def restore(gm: GraphModule, parts: Parts) -> Quantizer:
    """Make a Quantizer that converts as the one did that the parts are of.

    Args:
        gm: Its float graph, which it takes over.
        parts: All else.

    Raises:
        InputError: the example inputs do not fit the graph.
        UnknownNameError: no back end has that name.
        RuntimeError: the state is not that of the plan's observers.
    """
    made = Quantizer.__new__(Quantizer)
    PreparedModel.__init__(made)
    made.backend, made.config, made.patterns = backend_of(parts.backend), parts.config, known_patterns()
    made.example_args, made.example_kwargs = parts.example_args, parts.example_kwargs
    made.input_observer, made.plan, made.graph_module = parts.input_observer, parts.plan, gm
    made.example_bound = bind(gm, made.example_args, made.example_kwargs, "the example inputs")
    made.weight_checksums = copy.copy(WeightChecksums(gm))  # a copy knows no model that could change
    made.integer_inputs, made.integer_outputs = parts.integer_inputs, parts.integer_outputs
    made.trained, made.warned = parts.trained, set(parts.warned)
    made.learned_qparams = dict(parts.learned)
    made.trained_joins = {name: [Part(*part) for part in found] for name, found in parts.joins.items()}
    for root, layer in parts.weight_layers.items():
        made.weight_layers._modules[root] = layer
    move_to_device_of(made.weight_layers, gm)
    if parts.trained is not None and not parts.state:
        attach_no_statistics(made)
        return made
    attach_observers_and_statistics(made)
    measured = nn.Module()
    measured.observers, measured.statistics = made.observers, made.calibration_statistics
    measured.load_state_dict(parts.state)
    if int(made.calibration_statistics.history.batches):
        made.weight_checksums.record(gm)
    return made
