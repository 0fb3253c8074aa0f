"""Convert: make the quantized model, tune it and check it if that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from fxquant.analysis.tune import check_tunable, tuned
from fxquant.calibration.interpreter import inputs_of
from fxquant.errors import UnknownNameError, within
from fxquant.graph.module import note
from fxquant.measure.parity import measure_parity, warn_of_breaches
from fxquant.passes.instruments import log_table
from fxquant.passes.pipelines import CONVERT
from fxquant.plan.quant_plan import QuantPlan, Refusal
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.final_plan import final_plan, qparams_in_use, refused_by_handlers
from fxquant.quantizer.form import check_operators, make_form
from fxquant.registry import did_you_mean


def convert(
    prepared: PreparedModel,
    *,
    to: str = "int8",
    check: Any = None,
    allow_uncalibrated: bool = False,
    engine: str | None = None,
    tune: Any = None,
) -> GraphModule:
    """Return a new module. The arguments and the errors are those of the public function."""
    # Refuse what cannot be done.
    if to not in CONVERT:
        raise UnknownNameError(
            "unknown form to convert to", got=repr(to), expected=", ".join(CONVERT), hint=did_you_mean(to, CONVERT)
        )
    if to == "int8":
        check_operators(prepared.backend)
    if tune is not None:
        check_tunable(to, allow_uncalibrated)

    # Find the qparams, and the units that they leave in float.
    qparams = qparams_in_use(prepared, allow_uncalibrated)
    refused = refused_by_handlers(prepared, qparams)

    # Make the model, or several of which the fastest is taken.
    plans: dict[Any, QuantPlan] = {}

    def make(in_float: Sequence[Refusal] = ()) -> Any:
        plan = final_plan(prepared, qparams, (*refused, *in_float))
        made = make_form(prepared, to, plan, engine)
        plans[made] = plan
        return made

    if tune is None:
        converted = make()
    else:
        args, kwargs = inputs_of(tune, prepared.example_args, "the batch to tune on", prepared.graph_module)
        with within("the batch to tune on"):
            plan = final_plan(prepared, qparams, refused)
            converted, tuning = tuned(prepared.graph_module, plan, make, args, kwargs)
        note(converted, tuning=tuning)
        log_table(tuning)

    # Compare int8 with the simulation.
    if check is not None:
        int8 = converted if to == "int8" else convert(prepared)
        _check(prepared, converted, int8, check, plans[converted])
    return converted


def _check(prepared: PreparedModel, converted: GraphModule, int8: GraphModule, batch: Any, plan: QuantPlan) -> None:
    """Measure parity on a batch, note it at the converted model, and warn of breaches."""
    args, kwargs = inputs_of(batch, prepared.example_args, "the batch to check parity on", prepared.graph_module)
    simulated = make_form(prepared, "fake_quant", plan)
    with within("the batch to check parity on"):
        found = measure_parity(int8, simulated, args, kwargs)
    log_table(found)
    warn_of_breaches(found)
    note(converted, parity=found)
