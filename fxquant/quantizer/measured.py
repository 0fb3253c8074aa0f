"""Measures models that were converted on a batch of the user's: which is the fastest, and whether its units agree."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule

from fxquant.analysis.tune import Make, tuned
from fxquant.calibration.batches import inputs_of
from fxquant.errors import InputError, error_context
from fxquant.graph.module import set_metadata
from fxquant.measure.parity import measure_parity, warn_of_breaches
from fxquant.measure.parity_table import Parity
from fxquant.passes.instruments import log_table
from fxquant.plan.quant_plan import QuantPlan
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.undo import written_buffers_undone


def fastest(prepared: PreparedModel, plan: QuantPlan, make: Make, batch: Any) -> GraphModule:
    """Tune a model on a batch: leave in float what is faster so, and return what is the fastest as a whole."""
    if prepared.integer_inputs:
        raise InputError(
            "a model that takes quantized values cannot be tuned",
            got=f"integer_inputs={prepared.integer_inputs!r}",
            hint="tune it without, and give what the table leaves in float to set_module_name(name, None)",
        )
    args, kwargs = inputs_of(batch, prepared.example_args, "the batch to tune on", prepared.graph_module)
    with error_context("the batch to tune on"):
        found, tuning = tuned(prepared.graph_module, plan, make, args, kwargs)
    converted: GraphModule = found
    set_metadata(converted, tuning=tuning)
    log_table(tuning)
    return converted


def check_parity(prepared: PreparedModel, int8: GraphModule, simulated: GraphModule, batch: Any) -> Parity:
    """Compare int8 operators, their reference and the simulation on a batch, and warn of what breaks the contract."""
    args, kwargs = inputs_of(batch, prepared.example_args, "the batch to check parity on", prepared.graph_module)
    # The batch leaves no trace in buffers of what is returned: in a cache of the model, say.
    with written_buffers_undone(int8), error_context("the batch to check parity on"):
        found = measure_parity(int8, simulated, args, kwargs)
    log_table(found)
    warn_of_breaches(found)
    return found
