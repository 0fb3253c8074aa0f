"""The Quantizer: wires tracing, passes, observers and conversion together. Each step is written elsewhere."""

from __future__ import annotations

import copy
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from fxquant.analysis.tune import check_tunable, tuned
from fxquant.backends.base import backend_of
from fxquant.calibration.calibration_report import CalibrationReport, calibration_report
from fxquant.calibration.interpreter import (
    MOST_BATCHES,
    CalibrationInterpreter,
    batches,
    check_like_example,
    inputs_of,
    run_with_hooks,
    say_where_it_stopped,
)
from fxquant.calibration.joined_ranges import UNEQUAL, Part
from fxquant.calibration.module_paths import places_of
from fxquant.calibration.observed_qparams import make_observers, means_of, observers_by_node, qparams_of
from fxquant.calibration.problems import find_problems, warn_of_problems, warn_of_unequal_joins
from fxquant.calibration.statistics import Statistics
from fxquant.capture.tracing import trace
from fxquant.errors import UnknownNameError, within
from fxquant.fake_quantize.base import observer_in
from fxquant.fake_quantize.own import OwnIntegers
from fxquant.graph.edit import free_name
from fxquant.graph.inputs import bind, example_tuple
from fxquant.graph.module import note
from fxquant.graph.module_state import check_names, make_ready, unchanged_on_error
from fxquant.graph.query import follow
from fxquant.measure.coverage import Coverage, coverage
from fxquant.measure.parity import Parity, measure_parity, tell
from fxquant.observers.defaults import get_default_qconfig_mapping
from fxquant.passes.apply_learned_rounding import layers_of_own_integers
from fxquant.passes.base import PassContext
from fxquant.passes.configure import unused_rules
from fxquant.passes.float_joins import joins_of_floats, with_joins_in_float
from fxquant.passes.fold_conv_bn import fold_conv_bn
from fxquant.passes.instruments import instruments_for
from fxquant.passes.joins import joins_of
from fxquant.passes.lower_units import declined_by_handlers, make_handlers
from fxquant.passes.manager import PassManager, Snapshot
from fxquant.passes.pipelines import CONVERT, PREPARE
from fxquant.patterns.pattern import Pattern
from fxquant.patterns.registry import by_name, from_names, known_patterns, module_types
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.plan.quant_plan import QuantPlan, Rejection
from fxquant.plan.spec import Observed, QParams, TensorRef
from fxquant.quantizer.checks import (
    check_groups,
    check_model,
    check_operators,
    check_plan,
    check_weights,
    checked_input_observer,
    distinct,
    in_eval,
    warn_of_unused_rules,
)
from fxquant.quantizer.mutation import Weights
from fxquant.quantizer.undo import RunState
from fxquant.registry import did_you_mean
from fxquant.runtime import attach_engine
from fxquant.settings import read_settings
from fxquant.training.adaround import Reconstruction

STATISTICS = "calibration_statistics"


class Quantizer:
    """A model that is being quantized: traced, planned, and ready to observe values.

    Calling it runs the float model and observes; what comes out is what the model gives, to the bit. Attention,
    ``einsum``, ``tensordot``, ``addcmul``, ``lerp``, ``addmv``, ``addbmm`` are taken apart and round in another order:
    to about 1e-6 of the largest value. The model itself is never changed: all work is done on a copy.

    Where weights have a fake-quantize that rounds in its own way, ``AdaRoundFakeQuantize`` say, ``weight_layers`` holds
    their layers, batch norm folded in, under the names of their units' roots: ``convert`` takes the integers from the
    ``weight_fake_quant`` of these, as it is then.

    Args:
        model: The float model. In training mode it is taken as if ``eval()`` had been called, with a warning.
        example_inputs: Tuple of the positional inputs (a lone tensor is taken as a one-tuple). They are run once.
        qconfig: A ``QConfig`` for everything, or a ``QConfigMapping``; None: the backend's default.
        example_kwargs: Keyword inputs.
        backend: Name of the backend that decides what can be quantized and what is fused.
        patterns: What to look for; None: what was registered, and ``DEFAULT_PATTERNS``.
        leaf_modules: Module types or qualified names that are kept whole and in float.
        strict: Raise if anything that the configuration asks to quantize stays float.
        input_observer: Constructor of the observer for values that no pattern covers; None: as the ``QConfig`` of
            the operator that reads them says.

    Raises:
        InputError: the example inputs do not fit, or do not run.
        TracingError: the model's own forward cannot be traced, or, if ``strict``, a submodule's. Otherwise the smallest
            submodule that cannot be traced is kept whole and in float, with a warning.
        PlanError: nothing can be quantized; or, if ``strict``, something stays float.
        UnknownNameError: no backend has that name, or ``leaf_modules`` names what does not exist.
    """

    trains: ClassVar[bool] = False
    """Whether the float graph is to be trained: then what it computes of parameters stays computed."""

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Any,
        qconfig: QConfig | QConfigMapping | None = None,
        *,
        example_kwargs: Mapping[str, Any] | None = None,
        backend: str = "cpu",
        patterns: Sequence[Pattern] | None = None,
        leaf_modules: Sequence[type[nn.Module] | str] = (),
        strict: bool = False,
        input_observer: Callable[[], Any] | None = None,
    ) -> None:
        check_model(model)
        self.backend = backend_of(backend)
        self.config = get_default_qconfig_mapping(backend) if qconfig is None else QConfigMapping.of(qconfig)
        self.patterns = known_patterns() if patterns is None else distinct(patterns)
        self.example_args = example_tuple(example_inputs, example_kwargs)
        self.example_kwargs = dict(example_kwargs or {})
        self._input_observer = checked_input_observer(input_observer)
        leaves: Any = leaf_modules if isinstance(leaf_modules, (tuple, list)) else (leaf_modules,)
        gm = trace(
            in_eval(model),
            example_args=self.example_args,
            example_kwargs=self.example_kwargs,
            leaf_modules=leaves,
            leaf_types=module_types(self.patterns),
            keep_untraceable=not strict,
            trains=self.trains,
        )
        unused = unused_rules(gm, self.config)
        ctx = self.context(QuantPlan())
        manager = PassManager(PREPARE, instruments_for(read_settings()))
        self.graph_module = manager.run(gm, ctx)
        self.snapshots: tuple[Snapshot, ...] = manager.snapshots
        self.plan: QuantPlan = ctx.plan
        warn_of_unused_rules(unused, self.graph_module, self.config, backend)
        self._example_bound = bind(self.graph_module, self.example_args, self.example_kwargs, "the example inputs")
        check_plan(self.plan, self.coverage(), strict, self.config)
        check_groups(self.graph_module, ctx)
        check_weights(self.graph_module, self.plan)
        self.observers = make_observers(self.plan)
        follow(self.observers, self.graph_module)
        in_float = joins_of_floats(self.graph_module, ctx)
        self.statistics = Statistics(self.graph_module, self.plan, self.observers, joins_of(ctx), in_float)
        self._warned: set[tuple[str, str]] = set()
        self._weights = Weights(model)
        self.handlers = make_handlers(self, self.graph_module, self.plan, self.patterns)
        self.weight_layers = self._make_weight_layers()
        self.trained_joins: Mapping[str, Sequence[Part]] = {}
        """Of a model that was trained: the name of each join, and what it takes."""
        self.trained: Mapping[TensorRef, QParams] | None = None
        """The grids that the model was trained on, which then take the place of those of the observers."""
        self.reconstruction: Reconstruction | None = None
        """What ``adaround`` gained, unit by unit; None if this is not what it gave."""

    @property
    def graph(self) -> Graph:
        """The normalized float graph."""
        return self.graph_module.graph

    @property
    def root(self) -> GraphModule:
        """The traced copy of the model."""
        return self.graph_module

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The modules of the traced copy, under their qualified names."""
        return dict(self.graph_module.named_modules())

    def observe(self, *args: Any, **kwargs: Any) -> Any:
        """Run one batch, show every planned tensor to its observer, and return the float output.

        Observers are changed by it, unless it raises. Threads may each have a Quantizer, or take turns on one.
        """
        self._weights.measure(self.graph_module)
        with torch.no_grad(), self._run_state.undone_on_error():
            result = run_with_hooks(self.graph_module, self._observe, args, kwargs)
            self.statistics.update(self.observers)
            return result

    @cached_property
    def _run_state(self) -> RunState:
        return RunState(self.graph_module, self.observers, self.handlers.values())

    def _observe(self, *args: Any, **kwargs: Any) -> Any:
        bound = bind(self.graph_module, args, kwargs, "the inputs")
        check_like_example(bound, self._example_bound, "the inputs")
        shown = observers_by_node(self.plan, self.observers, self.statistics.begin())
        return CalibrationInterpreter(self.graph_module, bound, shown, self.handlers).run()

    __call__ = observe

    def calibrate(
        self,
        data: Iterable[Any],
        *,
        num_batches: int | None = None,
        progress: bool = True,
        until_stable: bool = False,
    ) -> Quantizer:
        """Observe every batch of ``data``; see :func:`calibrate`."""
        limit = MOST_BATCHES if until_stable and num_batches is None else num_batches
        stable = False
        found = batches(data, self.example_args, self.graph_module, num_batches=limit, progress=progress)
        for index, (args, kwargs) in enumerate(found):
            with within(f"calibration batch {index}"):
                self.observe(*args, **kwargs)
            if until_stable and (stable := self.statistics.stable(self.observers)):
                break
        if until_stable:
            say_where_it_stopped(stable, int(self.statistics.history.batches), progress)
            self._warned = {(name, kind) for name, kind in self._warned if kind != "moving"}  # it is asked about again
        self._warn()
        return self

    def quantize(self) -> GraphModule:
        """The int8 model; see :func:`convert`."""
        return self.convert(to="int8")

    def fake_quantize(self) -> GraphModule:
        """The simulation in float; see :func:`convert`."""
        return self.convert(to="fake_quant")

    def convert(
        self,
        *,
        to: str = "int8",
        check: Any = None,
        allow_uncalibrated: bool = False,
        engine: str | None = None,
        tune: Any = None,
    ) -> GraphModule:
        """A new module; see :func:`convert`."""
        if to not in CONVERT:
            raise UnknownNameError(
                "unknown form to convert to", got=repr(to), expected=", ".join(CONVERT), hint=did_you_mean(to, CONVERT)
            )
        if to == "int8":
            check_operators(self.backend)
        if tune is not None:
            check_tunable(to, allow_uncalibrated)
        if self.trained is None:
            self._weights.warn_if_changed(self.graph_module, self._run_state.buffers)
        qparams = self._qparams(allow_uncalibrated)
        declined = declined_by_handlers(self.graph_module, self.plan.with_observations(qparams), self.handlers)
        plans: dict[Any, QuantPlan] = {}

        def make(in_float: Sequence[Rejection] = ()) -> Any:
            plan = self._planned(qparams, (*declined, *in_float))
            plans[made := self._form(to, engine, plan)] = plan
            return made

        if tune is None:
            converted = make()
        else:
            batch = inputs_of(tune, self.example_args, "the batch to tune on", self.graph_module)
            with within("the batch to tune on"):
                converted, tuning = tuned(self.graph_module, self._planned(qparams, declined), make, *batch)
            note(converted, tuning=tuning)
            print(tuning)
        if check is not None:
            note(converted, parity=self._check(converted if to == "int8" else self.convert(), check, plans[converted]))
        return converted

    def _planned(self, qparams: Mapping[TensorRef, QParams], refused: Sequence[Rejection]) -> QuantPlan:
        joins = self.statistics.joins()
        return with_joins_in_float(self.graph_module, self.context(self.plan), qparams, refused, joins, UNEQUAL)

    def _form(self, to: str, engine: str | None, plan: QuantPlan) -> GraphModule:
        """A new module, by this plan."""
        ctx = self.context(plan)
        manager = PassManager(CONVERT[to], instruments_for(read_settings()), first=len(self.snapshots))
        converted: Any = manager.run(copy.deepcopy(self.graph_module), ctx)
        converted.eval()  # the modules that passes made, too
        follow(converted, self.graph_module)
        make_ready(converted)
        facts = {"quant_coverage": coverage(self.graph_module, plan), "snapshots": self.snapshots + manager.snapshots}
        note(converted, quant_plan=ctx.plan, **facts)
        attach_engine(converted, engine, to)
        return converted

    def _check(self, int8: GraphModule, batch: Any, plan: QuantPlan) -> Parity:
        args, kwargs = inputs_of(batch, self.example_args, "the batch to check parity on", self.graph_module)
        simulated = self._form("fake_quant", None, plan)
        with within("the batch to check parity on"):
            found = measure_parity(int8, simulated, args, kwargs)
        tell(found)
        return found

    def calibration_report(self) -> CalibrationReport:
        """What calibration found, value by value, the worst first: ranges and whether they have settled, clipped values
        and outliers, channels that never change, NaN and infinities."""
        return calibration_report(self.graph_module, self.plan, dict(self.observers.items()), self.statistics)

    def coverage(self) -> Coverage:
        """What becomes int8, what stays float, and why."""
        return coverage(self.graph_module, self.plan)

    def _repr_html_(self) -> str:
        return f"<b>{html.escape(str(self).splitlines()[0])}</b>{self.coverage()._repr_html_()}"

    def __str__(self) -> str:
        return f"{type(self.graph_module).__name__} for backend {self.backend.name!r}\n{self.coverage()}"

    def state_dict(self) -> dict[str, Tensor]:
        """The float model's state under its own names; behind ``observers.<value>.`` that of the observers, behind
        ``weight_layers.<unit>.`` that of ``weight_layers``, behind ``calibration_statistics.`` what only the
        report shows."""
        return {**self.graph_module.state_dict(), **self.measured().state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> None:
        """Take over the state of a Quantizer of the same model and configuration: all of it, or nothing.

        Raises:
            RuntimeError: keys differ (a StateError, which names the first unit or value that does), or shapes.
        """
        measured = self.measured()
        statistics = free_name(self.graph_module, STATISTICS)
        if not any(name.startswith(f"{statistics}.") for name in state_dict):
            delattr(measured, statistics)  # a state from before there were any
        beside = tuple(f"{name}." for name, _ in measured.named_children())
        own = {name: value for name, value in state_dict.items() if not name.startswith(beside)}
        rest = {name: value for name, value in state_dict.items() if name not in own}
        check_names(measured, rest, strict=strict)
        with unchanged_on_error(measured):
            measured.load_state_dict(rest, strict=strict)
            self.graph_module.load_state_dict(own, strict=strict)  # which takes all of it, or nothing
        self._weights.measure(self.graph_module, anew=True)

    def measured(self) -> nn.Module:
        """What is kept beside the model: ``observers``, ``weight_layers`` and ``calibration_statistics``.

        Of a name that the model has itself, ``_`` stands behind it, in ``state_dict`` too."""
        holder = nn.Module()
        parts = ("observers", self.observers), ("weight_layers", self.weight_layers), (STATISTICS, self.statistics)
        for name, part in parts:
            holder.add_module(free_name(self.graph_module, name), part)
        return holder

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "patterns": by_name(self.patterns)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "patterns": from_names(state["patterns"])})

    def context(self, plan: QuantPlan) -> PassContext:
        """What passes share, with this plan."""
        return PassContext(
            plan=plan,
            config=self.config,
            backend=self.backend,
            patterns=self.patterns,
            input_observer=self._input_observer,
            handlers=getattr(self, "handlers", {}),
            weight_layers=dict(getattr(self, "weight_layers", {})),
            means=means_of(plan, getattr(self, "observers", {})),
            example_args=self.example_args,
            example_kwargs=self.example_kwargs,
            trains=self.trains,
        )

    def _make_weight_layers(self) -> nn.ModuleDict:
        weights = [policy for ref, policy in self.plan.policies.items() if ref.kind == "parameter"]
        makers = {id(policy.observer): policy.observer for policy in weights if isinstance(policy, Observed)}
        if not any(isinstance(make(), OwnIntegers) for make in makers.values()):
            return nn.ModuleDict()
        ctx = self.context(self.plan)
        folded = PassManager((fold_conv_bn,)).run(copy.deepcopy(self.graph_module), ctx)
        return layers_of_own_integers(folded, ctx)

    def _qparams(self, allow_uncalibrated: bool) -> dict[TensorRef, QParams]:
        if self.trained is not None:
            warn_of_unequal_joins(self.trained_joins, self.graph_module, self.plan)
            return dict(self.trained)
        self._warn()
        return qparams_of(self.graph_module, self.plan, dict(self.observers.items()), self.handlers, allow_uncalibrated)

    def _warn(self) -> None:
        """Say what is wrong with the calibration, if that was not said before."""
        found = find_problems(self.statistics, {name: observer_in(made) for name, made in self.observers.items()})
        if found:
            places = places_of(self.statistics.refs, self.graph_module, self.plan)
            warn_of_problems(found, places, self._warned)
