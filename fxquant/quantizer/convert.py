"""Convert: make the quantized model, tune it and check it if that is asked for."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule

from fxquant.graph.module import set_metadata
from fxquant.graph.packing import pack_like
from fxquant.measure.coverage import coverage
from fxquant.passes.pipelines import passes_for
from fxquant.plan.quant_plan import QuantPlan, Refusal
from fxquant.quantizer.branches import convert_branches
from fxquant.quantizer.checks import check_target, check_tunable
from fxquant.quantizer.data import PreparedModel, outside_inference_mode
from fxquant.quantizer.final_plan import final_plan, qparams_in_use
from fxquant.quantizer.measured import check_parity, fastest
from fxquant.quantizer.run_passes import run_passes
from fxquant.runtime.program_engine import attach_engine


@outside_inference_mode
def convert_prepared(
    prepared: PreparedModel,
    *,
    to: str = "int8",
    check: Any = None,
    allow_uncalibrated: bool = False,
    engine: str | None = None,
    tune: Any = None,
) -> GraphModule:
    """Return a new module; arguments and errors are those of :func:`fxquant.convert`."""
    # Refuse what cannot be run.
    check_target(to, prepared.backend, checked=check is not None)
    if tune is not None:
        check_tunable(to, allow_uncalibrated)

    # Ask the observers for the qparams of activations. Weights get theirs from a pass, once batch norms are folded.
    qparams = qparams_in_use(prepared, allow_uncalibrated)

    # Make the model; with ``tune`` several, of which the fastest is taken.
    plans: dict[Any, QuantPlan] = {}

    def make(in_float: Sequence[Refusal] = ()) -> Any:
        plan = final_plan(prepared, qparams, in_float)
        converted = convert_by(prepared, to, plan, engine, allow_uncalibrated)
        plans[converted] = plan
        return converted

    converted = make() if tune is None else fastest(prepared, final_plan(prepared, qparams), make, tune)

    # Compare int8 with the simulation.
    if check is not None:
        int8 = converted if to == "int8" else convert_prepared(prepared)
        simulated = convert_by(prepared, "fake_quant", plans[converted])
        set_metadata(converted, parity=check_parity(prepared, int8, simulated, check))
    return converted


def convert_by(
    prepared: PreparedModel, to: str, plan: QuantPlan, engine: str | None = None, allow_uncalibrated: bool = False
) -> GraphModule:
    """Run the passes of ``CONVERT`` on a copy of the graph, and return the module that they make.

    Args:
        prepared: Its graph is copied.
        to: A key of ``CONVERT``.
        plan: With the qparams of all activations.
        engine: As for :func:`fxquant.convert`.
        allow_uncalibrated: As for :func:`fxquant.convert`, of the branches of ``torch.cond``.
    """
    passes = passes_for(to, integers=bool(prepared.integer_inputs or prepared.integer_outputs))
    run = run_passes(prepared, passes, copy.deepcopy(prepared.graph_module), plan)
    converted = run.graph_module
    # Branches of torch.cond are models of their own.
    options = {"to": to, "engine": engine, "allow_uncalibrated": allow_uncalibrated}
    branch_rows = convert_branches(prepared, converted, convert_prepared, **options)
    pack_like(converted, prepared.graph_module)  # in evaluation mode, on the device of the float graph
    found = coverage(prepared.graph_module, plan, branch_rows)
    set_metadata(converted, quant_form=to, quant_plan=run.context.plan, quant_coverage=found, snapshots=run.snapshots)
    # load_state_dict says which joins only one of two models quantizes. For that it needs all joins, also those that
    # calibration left in float, so those of prepare's plan.
    joins_before_calibration = replace(run.context, plan=prepared.plan).joins()
    set_metadata(converted, joins={unit.root: unit.pattern for unit in joins_before_calibration})
    attach_engine(converted, engine, to)
    return converted
