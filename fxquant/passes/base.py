"""Defines a pass, and the context that passes read and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from fxquant.backends.base import Backend
from fxquant.graph.query import nodes_by_name
from fxquant.nn.fake_quantize import FakeQuantizedWeight
from fxquant.patterns.pattern import Output, Pattern
from fxquant.plan.qconfig import QConfigMapping
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.region import Region, Split
from fxquant.plan.spec import TensorRef


@dataclass(slots=True)
class PassContext:
    """The state that passes hand to one another. A pass may replace ``plan``; everything else is read-only."""

    plan: QuantPlan
    config: QConfigMapping
    backend: Backend
    patterns: tuple[Pattern, ...]
    input_observer: Callable[[], Any] | None = None
    """Observes the values that no unit makes; None: as the QConfig of the unit that reads them says."""
    handlers: Mapping[str, Any] = field(default_factory=dict)
    """Root of a unit -> the handler that a user registered for its pattern."""
    weight_layers: Mapping[str, FakeQuantizedWeight] = field(default_factory=dict)
    """Root of a unit -> the layer with its weight, where the rounding is learned: by its ``weight_fake_quant``."""
    means: Mapping[TensorRef, Tensor] = field(default_factory=dict)
    """What was observed for the policies of kind ``Means``: float64 [C]."""
    example_args: tuple[Any, ...] = ()
    example_kwargs: Mapping[str, Any] = field(default_factory=dict)
    has_example: bool = True
    """False: the model was traced without example inputs, so nothing is known of shapes."""
    integer_inputs: bool | tuple[str, ...] = False
    """Names of the arguments that the converted model takes as quantized values; True: all float tensors."""
    integer_outputs: bool | tuple[int, ...] = False
    """Positions of the tensors that it returns as quantized values; True: all float ones."""
    trains: bool = False
    """True: parameters go on learning, so what is computed of them must stay computed."""
    factors: Sequence[tuple[Region, Tensor]] = ()
    """Regions, and what the channels of their values are divided by: float64 [channels]."""
    splits: Sequence[Split] = ()
    """Norms that get a second one."""
    _by_name: dict[str, Pattern] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._by_name = {pattern.name: pattern for pattern in self.patterns}

    def pattern_of(self, unit: QuantUnit) -> Pattern:
        """Return the pattern that a unit of the plan was matched by."""
        return self._by_name[unit.pattern]

    def joins(self) -> tuple[QuantUnit, ...]:
        """Return the units of the plan that put several values on the same qparams, in the order of the graph."""
        units = [(unit, self.pattern_of(unit)) for unit in self.plan.units]
        return tuple(
            unit for unit, pattern in units if pattern.output is Output.ONE_FOR_ALL and pattern.handler is None
        )


@dataclass(frozen=True, slots=True)
class Pass:
    """A named function that edits a graph in place, or builds a new one, and returns it.

    A pass may assume that the graph it gets is valid, and must leave it valid. It does not call ``lint()``,
    ``recompile()`` or ``deepcopy()``, does not print, and does not know which pass runs next: the PassManager and
    its instruments do all of that.
    """

    name: str
    run: Callable[[GraphModule, PassContext], GraphModule]
    after: tuple[str, ...] = ()
    """Names of passes that must have run earlier, if they are in the pipeline at all: checked when it is built."""
    keeps_values: bool = False
    """True: the graph computes the same as before, which FXQUANT_VERIFY=1 checks."""
    required: bool = False
    """True: what comes after does not work without it, so FXQUANT_SKIP_PASSES may not name it."""

    def __call__(self, gm: GraphModule, ctx: PassContext) -> GraphModule:
        return self.run(gm, ctx)


def graph_pass(
    *, after: tuple[str, ...] = (), keeps_values: bool = False, required: bool = False
) -> Callable[[Callable[[GraphModule, PassContext], GraphModule]], Pass]:
    """Make a function a Pass. Its name is the function's name; the first line of its docstring is its help text."""
    return lambda run: Pass(run.__name__, run, after, keeps_values, required)


def weighted_nodes(gm: GraphModule, ctx: PassContext) -> list[tuple[Node, QuantUnit]]:
    """Return the calls whose weight is quantized, each with its unit."""
    nodes = nodes_by_name(gm)
    return [
        (nodes[unit.captures[ctx.pattern_of(unit).weight_capture or ""]], unit)
        for unit in ctx.plan.units
        if "weight" in unit.roles
    ]
