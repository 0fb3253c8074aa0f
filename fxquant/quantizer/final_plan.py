"""The plan that a conversion follows: with the qparams that were measured, and what stays float because of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fxquant.calibration.joined_ranges import UNEQUAL
from fxquant.calibration.observed_qparams import qparams_of
from fxquant.calibration.problems import warn_of_unequal_joins
from fxquant.passes.float_joins import with_joins_in_float
from fxquant.passes.handlers import declined_by_handlers
from fxquant.plan.quant_plan import QuantPlan, Refusal
from fxquant.plan.spec import QParams, TensorRef
from fxquant.quantizer.calibrate import warn_of_calibration
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.run_passes import pass_context


def qparams_in_use(prepared: PreparedModel, allow_uncalibrated: bool) -> dict[TensorRef, QParams]:
    """Return the qparams of each activation that has its own: those that were learned, or those that observers choose.

    Raises:
        CalibrationError: a value was never observed, and that is not allowed.
    """
    if prepared.trained is not None:
        warn_of_unequal_joins(prepared.trained_joins, prepared.graph_module, prepared.plan)
        own = {unit.roles["weight"] for unit in prepared.plan.units if unit.root in prepared.weight_layers}
        return {ref: found for ref, found in prepared.trained.items() if ref not in own}  # these layers know theirs
    prepared.weight_checksums.warn_if_changed(prepared.graph_module, prepared.run_state.buffers)
    warn_of_calibration(prepared)
    observers = dict(prepared.observers.items())
    found = qparams_of(prepared.graph_module, prepared.plan, observers, prepared.handlers, allow_uncalibrated)
    return {**found, **prepared.learned_qparams}


def final_plan(
    prepared: PreparedModel, qparams: Mapping[TensorRef, QParams], in_float: Sequence[Refusal] = ()
) -> QuantPlan:
    """Return the plan with the qparams of activations, and without the units that stay float because of them.

    These are the units that a user's handler declines, the joins of unequal ranges, and those of ``in_float``.
    """
    declined = declined_by_handlers(prepared.graph_module, prepared.plan.with_observations(qparams), prepared.handlers)
    refused = (*declined, *in_float)
    joins = prepared.calibration_statistics.joins()
    if not joins:
        return prepared.plan.with_observations(qparams, refused)
    return with_joins_in_float(
        prepared.graph_module, pass_context(prepared, prepared.plan), qparams, refused, joins, UNEQUAL
    )
