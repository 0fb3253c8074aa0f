"""The data of a model that is being quantized, which each step reads and adds to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch
from torch import nn
from torch.fx import GraphModule

from fxquant.backends.base import Backend
from fxquant.calibration.joined_ranges import Part
from fxquant.calibration.statistics import CalibrationStatistics
from fxquant.equalization.table import Equalization
from fxquant.passes.instruments import Snapshot
from fxquant.patterns.pattern import Pattern
from fxquant.plan.qconfig import QConfigMapping
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import QParams, TensorRef
from fxquant.quantizer.mutation import WeightChecksums
from fxquant.quantizer.undo import RunState

P = ParamSpec("P")
R = TypeVar("R")


def outside_inference_mode(step: Callable[P, R]) -> Callable[P, R]:
    """Let a step run under ``torch.inference_mode``: outside it, and without gradients.

    The tensors that it makes (parameters, observers, qparams) are then ordinary ones, which can be written to later.
    """

    @functools.wraps(step)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return step(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return step(*args, **kwargs)

    return outside


@dataclass(eq=False, repr=False)
class PreparedModel:
    """A traced model, its plan, and what measures it.

    * ``graph_module`` is a copy: nothing here is shared with the user's model.
    * ``plan`` names nodes of ``graph_module``, and is replaced, never changed.
    * ``observers`` holds one module for each activation and each mean that is measured, under its name in the plan.
    * ``convert`` changes nothing of this but the notes of what was warned of (``warned``, and in ``weight_checksums``).
    """

    trains: ClassVar[bool] = False
    """The float graph is to be trained: then values computed from parameters are not folded into constants."""
    lenient: ClassVar[bool] = False
    """Rules that match nothing are not warned of, and a plan may have no units: what other libraries allow."""
    why_branches_stay_float: ClassVar[str] = ""
    """Reason that the coverage gives for branches of ``torch.cond``. Empty: they are quantized inside."""

    observe: ClassVar[Callable[..., Any]]
    """Runs one batch; the class that users hold has it, and its subclasses may override it."""

    # Set by configure.
    backend: Backend = field(init=False)
    config: QConfigMapping = field(init=False)
    patterns: tuple[Pattern, ...] = field(init=False)
    example_args: tuple[Any, ...] = field(init=False)
    example_kwargs: dict[str, Any] = field(init=False)
    has_example: bool = field(default=True, init=False)
    """False: there are no example inputs."""
    input_observer: Callable[[], Any] | None = field(init=False)
    integer_inputs: bool | tuple[str, ...] = field(default=False, init=False)
    integer_outputs: bool | tuple[int, ...] = field(default=False, init=False)

    # Set by prepare.
    graph_module: GraphModule = field(init=False)
    plan: QuantPlan = field(default_factory=QuantPlan, init=False)
    snapshots: tuple[Snapshot, ...] = field(default=(), init=False)
    """The passes that have run, with the graph before and after each."""
    example_bound: Mapping[str, Any] = field(default_factory=dict, init=False)
    """The example inputs by the names of their arguments."""
    weight_checksums: WeightChecksums = field(init=False)
    """The checksums of the weights, of the model when it was prepared and of the graph when it was measured."""

    # Set when observers are attached. Calibration changes what they have seen.
    observers: nn.ModuleDict = field(default_factory=nn.ModuleDict, init=False)
    calibration_statistics: CalibrationStatistics = field(init=False)
    """What calibration has shown beside qparams: the history of ranges, and extremes of channels and of joined values.
    The report and the warnings are made of it."""
    weight_layers: nn.ModuleDict = field(default_factory=nn.ModuleDict, init=False)
    """Root of a unit -> the layer whose weight has a learned rounding, batch norm folded in."""
    warned: set[tuple[str, str]] = field(default_factory=set, init=False)
    """Value and kind of each problem of the calibration that a warning has named."""

    # Set by the constructor of Quantizer, last.
    handlers: dict[str, Any] = field(default_factory=dict, init=False)
    """Root of a unit -> the user's handler of it."""
    # Set by prepare, one prepared model for each branch.
    branches: dict[tuple[str, str], PreparedModel] = field(default_factory=dict, init=False)
    """Path of a call of ``torch.cond`` and name of a branch -> what was prepared of the branch."""

    # Set by training, and by functions that improve a calibrated model: reconstruct, correct_statistics, equalize.
    trained: Mapping[TensorRef, QParams] | None = field(default=None, init=False)
    """The qparams that the model was trained with, which take the place of those of the observers."""
    learned_qparams: Mapping[TensorRef, QParams] = field(default_factory=dict, init=False)
    """The qparams of activations that ``reconstruct`` has learned, in place of those that their observers choose."""
    trained_joins: Mapping[str, Sequence[Part]] = field(default_factory=dict, init=False)
    """Of a model that was trained: the name of each join, and the values that it takes."""
    reconstruction: Any = field(default=None, init=False)
    """The table of ``adaround`` (``Reconstruction``), ``reconstruct`` (``LearnedBlocks``) or ``gptq``
    (``RoundedLayers``); None where none has run."""
    corrected_statistics: Any = field(default=None, init=False)
    """The table of ``correct_statistics`` (``CorrectedLayers``); None where that has not run."""
    equalization: Equalization | None = field(default=None, init=False)
    """The table of what ``equalize`` has scaled; None where that has not run."""

    @cached_property
    def run_state(self) -> RunState:
        """Return the state that a batch may change, so that one that fails can be undone."""
        return RunState(self.graph_module, self.observers, tuple(self._held_beside()))

    def _held_beside(self) -> Iterator[Any]:
        """Yield what observing a batch may change beside graph and observers: handlers, and all of each branch."""
        yield from self.handlers.values()
        for inner in self.branches.values():
            yield inner
            yield from inner._held_beside()
