"""The object that users hold. Its methods are functions of other files, each file named after its step."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
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
from fxquant.quantizer.calibrate import calibrate_prepared, observe_batch
from fxquant.quantizer.configuration import configure
from fxquant.quantizer.convert import convert_prepared
from fxquant.quantizer.data import PreparedModel, outside_inference_mode
from fxquant.quantizer.prepare import prepare_model
from fxquant.quantizer.state import load_state_dict, pickled, state_dict, unpickle


class Quantizer(PreparedModel):
    """A model that is being quantized: traced, planned, and ready to observe values.

    Calling it runs the float model and observes; what comes out is what the model gives, to the bit, but for attention,
    ``einsum``, ``tensordot``, ``addcmul``, ``lerp``, ``addmv``, ``addbmm``, and ``addmm``, ``baddbmm`` and ``addr``
    with factors. These are taken apart and round in another order: to about 1e-6 of the largest value. The model
    itself is never changed: all work is done on a copy.

    ``weight_layers`` is for weights with learned rounding, as ``AdaRoundFakeQuantize`` has it: root of the unit ->
    layer with batch norm folded in. ``convert`` takes the integers from its ``weight_fake_quant``.

    Args:
        input_observer: Constructor of the observer for values that no pattern covers; None: as the ``QConfig`` of
            the operator that reads them says.

    The other arguments, and the errors, are those of :func:`prepare`.
    """

    @outside_inference_mode
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
        # Check what was asked for, and fill in the defaults.
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
        # Trace a copy of the model, and decide what becomes int8.
        prepare_model(self, module, leaf_modules, strict, capture)
        # Make what sees the values: observers beside the graph, and handlers of the user's own patterns.
        attach_observers(self)
        self.handlers = make_handlers(self, self.graph_module, self.plan, self.patterns)

    observe = observe_batch
    calibrate = calibrate_prepared
    convert = convert_prepared

    @property
    def graph(self) -> Graph:
        """Return the normalized float graph."""
        return self.graph_module.graph

    @property
    def root(self) -> GraphModule:
        """Return the traced copy of the model."""
        return self.graph_module

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Return the modules of the traced copy, under their qualified names."""
        return dict(self.graph_module.named_modules())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Observe one batch: the same as :meth:`observe`."""
        return self.observe(*args, **kwargs)

    def quantize(self) -> GraphModule:
        """Return the int8 model; see :func:`convert`."""
        return self.convert()

    def fake_quantize(self) -> GraphModule:
        """Return the simulation in float; see :func:`convert`."""
        return self.convert(to="fake_quant")

    def calibration_report(self) -> CalibrationReport:
        """Report what calibration found, value by value, the worst first: ranges and whether they have settled, clipped
        values and outliers, channels that never change, NaN and infinities."""
        return calibration_report(
            self.graph_module, self.plan, dict(self.observers.items()), self.calibration_statistics
        )

    def coverage(self) -> Coverage:
        """Report what becomes int8, what stays float, and why."""
        return coverage(self.graph_module, self.plan)

    def _repr_html_(self) -> str:
        return f"<b>{html.escape(str(self).splitlines()[0])}</b>{self.coverage()._repr_html_()}"

    def __str__(self) -> str:
        return f"{type(self.graph_module).__name__} for backend {self.backend.name!r}\n{self.coverage()}"

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the float model and of what measures it.

        The float model's state has its own names. That of observers begins with ``observers.<value>.``, that of
        ``weight_layers`` with ``weight_layers.<unit>.``, the qparams that ``reconstruct`` has learned with
        ``learned_qparams.<value>.``, and what only the calibration report shows with ``calibration_statistics.``.

        Raises:
            StateError: ``apply_qparams`` or training gave it qparams, which no state holds: ``save`` writes them.
        """
        return state_dict(self)

    @outside_inference_mode
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
