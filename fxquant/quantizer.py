"""The Quantizer: wires tracing, passes, observers and conversion together. Each step is written elsewhere."""

from __future__ import annotations

import copy
import html
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from fxquant.algorithms.adaround import Reconstruction
from fxquant.backends.base import BACKENDS
from fxquant.calibration import CalibrationInterpreter, batches, check_like_example, inputs_of, run_with_hooks
from fxquant.checks import (
    check_model,
    check_operators,
    check_plan,
    check_weights,
    checked_input_observer,
    distinct,
    in_eval,
    never_observed,
    warn_of_non_finite_values,
    warn_of_unused_rules,
)
from fxquant.coverage import Coverage, coverage
from fxquant.engine import attach_engine
from fxquant.errors import CalibrationError, UnknownNameError, warn
from fxquant.fake_quantize.base import disable_fake_quant
from fxquant.fake_quantize.own import OwnIntegers
from fxquant.graph.inputs import bind
from fxquant.graph.query import follow, nodes_by_name
from fxquant.graph.tracing import trace
from fxquant.observers.channel_means import ChannelMeans
from fxquant.observers.defaults import get_default_qconfig_mapping
from fxquant.parity import Parity, measure_parity, plan_of
from fxquant.passes.base import PassContext
from fxquant.passes.configure import unused_rules
from fxquant.passes.fold_conv_bn import fold_conv_bn
from fxquant.passes.instruments import instruments_for
from fxquant.passes.lower_units import declined_by_handlers
from fxquant.passes.manager import PassManager, Snapshot
from fxquant.passes.pipelines import CONVERT, PREPARE
from fxquant.passes.take_integers import layers_of_own_integers
from fxquant.patterns.pattern import Pattern
from fxquant.patterns.registry import known_patterns, module_types
from fxquant.plan import QuantPlan, Rejection
from fxquant.qconfig import QConfig, QConfigMapping
from fxquant.registry import did_you_mean
from fxquant.settings import read_settings
from fxquant.spec import Fixed, Handled, Means, Observed, QParams, SharedWith, TensorRef
from fxquant.tuning.tune import check_tunable, tuned
from fxquant.undo import RunState


class Quantizer:
    """A model that is being quantized: traced, planned, and ready to observe values.

    Calling it runs the float model and observes; what comes out is what the model gives: to the bit, attention aside,
    which is taken apart. The model itself is never changed: all work is done on a copy.

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
        self.backend = BACKENDS[backend]
        self.config = get_default_qconfig_mapping(backend) if qconfig is None else QConfigMapping.of(qconfig)
        self.patterns = known_patterns() if patterns is None else distinct(patterns)
        self.example_args = _as_tuple(example_inputs)
        self.example_kwargs = dict(example_kwargs or {})
        self._input_observer = checked_input_observer(input_observer)
        gm = trace(
            in_eval(model),
            example_args=self.example_args,
            example_kwargs=self.example_kwargs,
            leaf_modules=_as_tuple(leaf_modules),
            leaf_types=module_types(self.patterns),
            keep_untraceable=not strict,
        )
        unused = unused_rules(gm, self.config)
        ctx = self.context(QuantPlan())
        manager = PassManager(PREPARE, instruments_for(read_settings()))
        self.graph_module = manager.run(gm, ctx)
        self.snapshots: tuple[Snapshot, ...] = manager.snapshots
        self.plan: QuantPlan = ctx.plan
        warn_of_unused_rules(unused, self.graph_module, self.config, backend)
        self._example_bound = bind(self.graph_module, self.example_args, self.example_kwargs, "the example inputs")
        check_plan(self.plan, self.coverage(), strict)
        check_weights(self.graph_module, self.plan)
        self.observers = _make_observers(self.plan)
        follow(self.observers, self.graph_module)
        self.handlers = self._make_handlers()
        self.weight_layers = self._make_weight_layers()
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
        with torch.no_grad(), self._run_state.undone_on_error():
            return run_with_hooks(self.graph_module, self._observe, args, kwargs)

    @cached_property
    def _run_state(self) -> RunState:
        return RunState(self.graph_module, self.observers, self.handlers.values())

    def _observe(self, *args: Any, **kwargs: Any) -> Any:
        bound = bind(self.graph_module, args, kwargs, "the inputs")
        check_like_example(bound, self._example_bound, "the inputs")
        return CalibrationInterpreter(self.graph_module, bound, self._observers_by_node(), self.handlers).run()

    __call__ = observe

    def calibrate(self, data: Iterable[Any], *, num_batches: int | None = None, progress: bool = True) -> Quantizer:
        """Observe every batch of ``data``; see :func:`calibrate`."""
        for args, kwargs in batches(data, self.example_args, num_batches=num_batches, progress=progress):
            self.observe(*args, **kwargs)
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
        qparams = self._qparams(allow_uncalibrated)
        warn_of_non_finite_values(self.observers)
        declined = declined_by_handlers(self.graph_module, self.plan.with_observations(qparams), self.handlers)

        def make(in_float: Sequence[Rejection] = ()) -> Any:
            return self._form(to, engine, self.plan.with_observations(qparams, (*declined, *in_float)))

        if tune is None:
            converted = make()
        else:
            batch = inputs_of(tune, self.example_args, "the batch to tune on")
            plan = self.plan.with_observations(qparams, declined)
            converted, tuning = tuned(self.graph_module, plan, make, *batch)
            converted.tuning = tuning
            print(tuning)
        if check is not None:
            converted.parity = self._check(converted if to == "int8" else self.convert(), check, qparams)
        return converted

    def _form(self, to: str, engine: str | None, plan: QuantPlan) -> GraphModule:
        """A new module, by this plan."""
        ctx = self.context(plan)
        manager = PassManager(CONVERT[to], instruments_for(read_settings()), first=len(self.snapshots))
        converted: Any = manager.run(copy.deepcopy(self.graph_module), ctx)
        converted.eval()  # the modules that passes made, too
        follow(converted, self.graph_module)
        converted.quant_plan, converted.quant_coverage = ctx.plan, coverage(self.graph_module, plan)
        converted.snapshots = self.snapshots + manager.snapshots
        attach_engine(converted, engine, to)
        return converted

    def _check(self, int8: GraphModule, batch: Any, qparams: Mapping[TensorRef, QParams]) -> Parity:
        args, kwargs = inputs_of(batch, self.example_args, "the batch to check parity on")
        refused = plan_of(int8).rejections[len(self.plan.rejections) :]
        simulated = self._form("fake_quant", None, self.plan.with_observations(qparams, refused))
        found = measure_parity(int8, simulated, args, kwargs)
        print(found)
        for row in found.breaches:
            warn(row.breach, at=row.unit, got=row)
        return found

    def coverage(self) -> Coverage:
        """What becomes int8, what stays float, and why."""
        return coverage(self.graph_module, self.plan)

    def _repr_html_(self) -> str:
        title = f"{type(self.graph_module).__name__} for backend {self.backend.name!r}"
        return f"<b>{html.escape(title)}</b>{self.coverage()._repr_html_()}"

    def __str__(self) -> str:
        return f"{type(self.graph_module).__name__} for backend {self.backend.name!r}\n{self.coverage()}"

    def state_dict(self) -> dict[str, Tensor]:
        """The float model's state under its own names; behind ``observers.<value>.`` that of the observers, behind
        ``weight_layers.<unit>.`` that of ``weight_layers``."""
        return {**self.graph_module.state_dict(), **self.measured().state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> None:
        """Take over the state of a Quantizer of the same model and configuration.

        Raises:
            RuntimeError: keys or shapes differ, as ``torch.nn.Module.load_state_dict`` says.
        """
        measured = self.measured()
        prefixes = tuple(f"{name}." for name, _ in measured.named_children())
        own = {name: value for name, value in state_dict.items() if not name.startswith(prefixes)}
        self.graph_module.load_state_dict(own, strict=strict)
        measured.load_state_dict({name: value for name, value in state_dict.items() if name not in own}, strict=strict)

    def measured(self) -> nn.Module:
        """What is kept beside the model: ``observers`` and ``weight_layers``."""
        holder = nn.Module()
        holder.observers, holder.weight_layers = self.observers, self.weight_layers
        return holder

    def __getstate__(self) -> dict[str, Any]:
        """Patterns that everybody has travel by name: their targets may be functions that pickle cannot find."""
        known = {pattern.name: pattern for pattern in known_patterns()}
        patterns = tuple(p.name if known.get(p.name) is p else p for p in self.patterns)
        return {**self.__dict__, "patterns": patterns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        known = {pattern.name: pattern for pattern in known_patterns()}
        for name in state["patterns"]:
            if isinstance(name, str) and name not in known:
                raise UnknownNameError(
                    "this Quantizer was prepared with a pattern that is not registered here",
                    got=repr(name),
                    hint="import the module that registers it before unpickling",
                )
        patterns = tuple(known[p] if isinstance(p, str) else p for p in state["patterns"])
        self.__dict__.update({**state, "patterns": patterns})

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
            means=self._means(plan),
            example_args=self.example_args,
            example_kwargs=self.example_kwargs,
        )

    def _means(self, plan: QuantPlan) -> dict[TensorRef, Tensor]:
        found: dict[TensorRef, Tensor] = {}
        for ref, policy in plan.policies.items():
            observer: Any = self.observers[ref.name] if isinstance(policy, Means) else None
            if observer is not None and (means := observer.means()) is not None:
                found[ref] = means
        return found

    def _make_handlers(self) -> dict[str, Any]:
        kinds = {pattern.name: pattern.handler for pattern in self.patterns if pattern.handler is not None}
        nodes = nodes_by_name(self.graph_module)
        made = {}
        for unit in self.plan.units:
            if unit.pattern in kinds:
                kind = kinds[unit.pattern]
                takes = len(inspect.signature(kind).parameters)
                made[unit.root] = kind(self, nodes[unit.root]) if takes >= 2 else kind()
        return made

    def _make_weight_layers(self) -> nn.ModuleDict:
        weights = [policy for ref, policy in self.plan.policies.items() if ref.kind == "parameter"]
        makers = {id(policy.observer): policy.observer for policy in weights if isinstance(policy, Observed)}
        if not any(isinstance(make(), OwnIntegers) for make in makers.values()):
            return nn.ModuleDict()
        ctx = self.context(self.plan)
        folded = PassManager((fold_conv_bn,)).run(copy.deepcopy(self.graph_module), ctx)
        return layers_of_own_integers(folded, ctx)

    def _observers_by_node(self) -> dict[str, list[nn.Module]]:
        found: dict[str, list[nn.Module]] = {}
        for ref, policy in self.plan.policies.items():
            if ref.kind == "activation" and (
                isinstance(policy, Observed) or (isinstance(policy, SharedWith) and policy.observed)
            ):
                found.setdefault(ref.name, []).append(self.observers[self.plan.grid_owner(ref).name])
            elif isinstance(policy, Means):
                found.setdefault(policy.value, []).append(self.observers[ref.name])
        return found

    def _qparams(self, allow_uncalibrated: bool) -> dict[TensorRef, QParams]:
        """Grids of all owners. What has none is an error that names it, unless a shell was asked for."""
        if self.trained is not None:
            return dict(self.trained)
        found: dict[TensorRef, QParams] = {}
        missing: list[TensorRef] = []
        for ref, policy in self.plan.policies.items():
            if ref.kind == "parameter":
                continue
            if isinstance(policy, Fixed):
                found[ref] = policy.qparams
            elif isinstance(policy, Handled):
                found[ref] = self.handlers[ref.name].qparams()
            elif isinstance(policy, Observed):
                observer: Any = self.observers[ref.name]
                try:
                    found[ref] = observer.qparams()
                except CalibrationError:
                    missing.append(ref)
                    unknown = torch.full((1,), float("nan"), dtype=torch.float32)
                    found[ref] = QParams(observer.scheme, unknown, torch.zeros(1, dtype=torch.int32))
        if missing and not allow_uncalibrated:
            raise never_observed(missing, self.graph_module, self.plan)
        return found


def _as_tuple(items: Any) -> tuple[Any, ...]:
    return tuple(items) if isinstance(items, (tuple, list)) else (items,)


def _make_observers(plan: QuantPlan) -> nn.ModuleDict:
    observers = nn.ModuleDict()
    for ref, policy in plan.policies.items():
        # Past add_module, which refuses the names of attributes: x.to(...) makes a value named "to".
        if ref.kind == "activation" and isinstance(policy, Observed):
            observers._modules[ref.name] = policy.observer()
        elif isinstance(policy, Means):
            observers._modules[ref.name] = ChannelMeans(policy.axis)
    return observers.apply(disable_fake_quant)  # calibration measures the float model
