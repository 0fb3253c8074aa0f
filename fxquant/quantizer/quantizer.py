"""The object that users hold. Each step is a function of the file that has its name."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule

from fxquant.calibration.calibration_report import CalibrationReport, calibration_report
from fxquant.measure.coverage import Coverage, coverage
from fxquant.passes.handlers import make_handlers
from fxquant.patterns.pattern import Pattern
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.quantizer.attach_observers import attach_observers
from fxquant.quantizer.calibrate import calibrate, observe
from fxquant.quantizer.configuration import configure
from fxquant.quantizer.convert import convert
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.prepare import prepare
from fxquant.quantizer.state import load_state_dict, pickled, state_dict, unpickle


class Quantizer(PreparedModel):
    """A model that is being quantized: traced, planned, and ready to observe values.

    Calling it runs the float model and observes; what comes out is what the model gives, to the bit. Attention,
    ``einsum``, ``tensordot``, ``addcmul``, ``lerp``, ``addmv``, ``addbmm`` are taken apart and round in another order:
    to about 1e-6 of the largest value. The model itself is never changed: all work is done on a copy.

    ``weight_layers`` is for weights with learned rounding, as ``AdaRoundFakeQuantize`` has it: root of the unit ->
    layer with batch norm folded in. ``convert`` takes the integers from its ``weight_fake_quant``.

    Args:
        model: The float model. In training mode it is taken as if ``eval()`` had been called, with a warning. Or a
            program that ``torch.export.export`` gave of one, or its ``module()``: names are those of the model. Of what
            ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel`` gave, the module inside is taken.
        example_inputs: Tuple of the positional inputs (a lone tensor is taken as a one-tuple). They are run once. None:
            nothing is run, and what depends on shapes stays float with that reason: functions that take weights, batch
            norms behind linear layers, products of two tensors, attention, residuals inside a convolution.
        qconfig: A ``QConfig`` for everything, or a ``QConfigMapping``; None: the backend's default.
        example_kwargs: Keyword inputs.
        backend: Name of the backend that decides what can be quantized and what is fused.
        patterns: What to look for; None: what was registered, and ``DEFAULT_PATTERNS``.
        leaf_modules: Module types or qualified names that are kept whole and in float.
        strict: Raise if anything that the configuration asks to quantize stays float.
        capture: How the graph is made. ``"fx"``: torch.fx traces. ``"export"``: ``torch.export`` exports the model.
            ``"auto"``: torch.fx; what it cannot trace is exported, that submodule alone if it can be, else the model;
            what neither takes is kept in float. The coverage names what was exported, and why.
        input_observer: Constructor of the observer for values that no pattern covers; None: as the ``QConfig`` of
            the operator that reads them says.
        integer_inputs: Names of the arguments that int8 and reference models take as quantized values, on the qparams
            that calibration chooses for them; True: all that are float tensors. Calibration and the simulation go on
            taking floats.
        integer_outputs: Positions of the tensors that they return as quantized values, among all that the model
            returns; True: all float ones. The simulation returns the floats that these stand for.

    Raises:
        InputError: the example inputs do not fit, or do not run.
        TracingError: the model's own forward can neither be traced nor exported, or, if ``strict``, a submodule's.
            Otherwise the smallest such submodule is kept whole and in float, with a warning.
        PlanError: nothing can be quantized; if ``strict``, something stays float; or what is to be taken or given as
            quantized values does.
        UnknownNameError: no backend has that name, or ``leaf_modules`` names what does not exist.
    """

    def __init__(
        self,
        model: nn.Module | ExportedProgram,
        example_inputs: Any,
        qconfig: QConfig | QConfigMapping | None = None,
        *,
        example_kwargs: Mapping[str, Any] | None = None,
        backend: str = "cpu",
        patterns: Sequence[Pattern] | None = None,
        leaf_modules: Sequence[type[nn.Module] | str] = (),
        strict: bool = False,
        capture: str = "auto",
        input_observer: Callable[[], Any] | None = None,
        integer_inputs: bool | str | Sequence[str] = False,
        integer_outputs: bool | int | Sequence[int] = False,
    ) -> None:
        super().__init__()
        module = configure(
            self,
            model,
            example_inputs,
            qconfig,
            example_kwargs=example_kwargs,
            backend=backend,
            patterns=patterns,
            input_observer=input_observer,
            integer_inputs=integer_inputs,
            integer_outputs=integer_outputs,
        )
        prepare(self, module, leaf_modules, strict, capture)
        attach_observers(self)
        self.handlers = make_handlers(self, self.graph_module, self.plan, self.patterns)

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

        :meth:`calibrate` calls it for each batch, so that a subclass may override it.
        Observers are changed by it, unless it raises. Threads may each have a Quantizer, or take turns on one.
        """
        return observe(self, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Observe one batch: the same as :meth:`observe`."""
        return self.observe(*args, **kwargs)

    def calibrate(
        self,
        data: Iterable[Any],
        *,
        num_batches: int | None = None,
        progress: bool = True,
        until_stable: bool = False,
    ) -> Quantizer:
        """Call :meth:`observe` with every batch of ``data``; see :func:`calibrate`."""
        calibrate(self, self.observe, data, num_batches, progress, until_stable)
        return self

    def quantize(self) -> GraphModule:
        """Return the int8 model; see :func:`convert`."""
        return self.convert()

    def fake_quantize(self) -> GraphModule:
        """Return the simulation in float; see :func:`convert`."""
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
        """Return a new module; see :func:`convert`."""
        return convert(self, to=to, check=check, allow_uncalibrated=allow_uncalibrated, engine=engine, tune=tune)

    def calibration_report(self) -> CalibrationReport:
        """Report what calibration found, value by value, the worst first: ranges and whether they have settled, clipped
        values and outliers, channels that never change, NaN and infinities."""
        return calibration_report(self.graph_module, self.plan, dict(self.observers.items()), self.statistics)

    def coverage(self) -> Coverage:
        """Report what becomes int8, what stays float, and why."""
        return coverage(self.graph_module, self.plan)

    def _repr_html_(self) -> str:
        return f"<b>{html.escape(str(self).splitlines()[0])}</b>{self.coverage()._repr_html_()}"

    def __str__(self) -> str:
        return f"{type(self.graph_module).__name__} for backend {self.backend.name!r}\n{self.coverage()}"

    def state_dict(self) -> dict[str, Tensor]:
        """Return the float model's state under its own names; behind ``observers.<value>.`` that of the observers,
        behind ``weight_layers.<unit>.`` that of ``weight_layers``, behind ``calibration_statistics.`` what only the
        report shows.

        Raises:
            StateError: ``apply_qparams`` or training gave it qparams, which no state holds: ``save`` writes them.
        """
        return state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> None:
        """Take over the state of a Quantizer of the same model and configuration: all of it, or nothing.

        Raises:
            RuntimeError: keys differ (a StateError, which names the first unit or value that does), or shapes.
        """
        load_state_dict(self, state_dict, strict)

    def __getstate__(self) -> dict[str, Any]:
        return pickled(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        unpickle(self, state)
