"""The subject of a report: whatever of a model there is to look at, found out from what the user gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn
from torch.fx import GraphModule

from fxquant.errors import CalibrationError, InputError
from fxquant.fake_quantize.base import observer_in
from fxquant.graph.module import get_metadata
from fxquant.measure.coverage import Coverage
from fxquant.passes.instruments import Snapshot
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import Means, TensorRef
from fxquant.quantizer.quantizer import Quantizer
from fxquant.training.trained import quantizer_of

Kind = Literal["planned", "calibrated", "converted"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model on its way to int8, as far as it has come."""

    name: str
    """Of the model's class."""
    kind: Kind
    planned: QuantPlan
    """As ``prepare`` decided; of a converted model, as it was carried out."""
    plan: QuantPlan
    """With the qparams, where there are any: its units may have lost nodes that were folded away."""
    coverage: Coverage
    snapshots: tuple[Snapshot, ...]
    float_graph: GraphModule | None = None
    """The normalized float graph; a converted model has none any more."""
    converted: GraphModule | None = None
    """The quantized model: as it was given, or made to see what becomes of it."""
    simulated: GraphModule | None = None
    """Its simulation, where there is a Quantizer to make it."""
    quantizer: Quantizer | None = None
    observers: Mapping[str, Any] = field(default_factory=dict)
    """Name of a value -> the observer that measured it."""
    note: str = ""
    """What is missing, and why."""

    def tensors_of(self, unit: QuantUnit) -> dict[str, str]:
        """Return the name of the tensor in each role of a unit; means, which biases are corrected by, are none."""
        return {role: ref.name for role, ref in unit.roles.items() if not self._is_mean(ref)}

    def _is_mean(self, ref: TensorRef) -> bool:
        return ref.kind == "mean" or isinstance(self.plan.policies.get(ref), Means)


def subject_of(model: Quantizer | nn.Module) -> Subject:
    """Look at what ``prepare``, ``prepare_qat`` or ``convert`` gave. It is not changed.

    A calibrated Quantizer is converted on the way, so that the passes of ``convert`` can be shown too.

    Raises:
        InputError: it is none of these.
    """
    if isinstance(model, Quantizer):
        return _of_quantizer(model)
    plan = get_metadata(model, "quant_plan")
    if isinstance(model, GraphModule) and isinstance(plan, QuantPlan):
        if isinstance(get_metadata(model, "preparation"), Quantizer):
            return _of_training(model)
        coverage = get_metadata(model, "quant_coverage") or Coverage(())
        return Subject(
            type(model).__name__,
            "converted",
            plan,
            plan,
            coverage,
            get_metadata(model, "snapshots") or (),
            converted=model,
        )
    raise InputError(
        "report takes what prepare, prepare_qat or convert gave",
        got=type(model).__name__,
        expected="a Quantizer, or the GraphModule of prepare_qat or convert",
        hint="fxquant.report(fxquant.prepare(model, example_inputs), path) reports on a float model",
    )


def _of_training(model: GraphModule) -> Subject:
    try:
        return _of_quantizer(quantizer_of(model))
    except CalibrationError as error:
        return _planned(quantizer_of(model, allow_uncalibrated=True), str(error))


def _of_quantizer(quantizer: Quantizer) -> Subject:
    try:
        simulated: Any = quantizer.convert(to="fake_quant")
        converted: Any = quantizer.convert(to="int8") if quantizer.backend.has_operators else simulated
    except CalibrationError as error:
        return _planned(quantizer, str(error))
    return Subject(
        type(quantizer.graph_module).__name__,
        "calibrated",
        quantizer.plan,
        get_metadata(converted, "quant_plan"),
        get_metadata(converted, "quant_coverage"),
        get_metadata(converted, "snapshots"),
        quantizer.graph_module,
        converted,
        simulated,
        quantizer,
        _observers(quantizer),
    )


def _planned(quantizer: Quantizer, note: str) -> Subject:
    plan, gm = quantizer.plan, quantizer.graph_module
    return Subject(
        type(gm).__name__,
        "planned",
        plan,
        plan,
        quantizer.coverage(),
        quantizer.snapshots,
        gm,
        quantizer=quantizer,
        observers=_observers(quantizer),
        note=note,
    )


def _observers(quantizer: Quantizer) -> dict[str, Any]:
    return {name: observer_in(module) for name, module in quantizer.observers.named_children()}
