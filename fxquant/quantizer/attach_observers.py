"""Attach to a plan what measures its values: observers, statistics, and layers with learned rounding."""

from __future__ import annotations

import copy

from torch import nn

from fxquant.calibration.observers import make_observers
from fxquant.calibration.statistics import CalibrationStatistics
from fxquant.fake_quantize.adaround import LearnedRounding
from fxquant.graph.query import move_to_device_of
from fxquant.passes.float_joins import joins_of_floats
from fxquant.passes.fold_conv_bn import fold_conv_bn
from fxquant.passes.manager import PassManager
from fxquant.passes.weights import layers_with_learned_rounding
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Observed
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.run_passes import pass_context


def attach_observers(prepared: PreparedModel) -> None:
    """Make all that measures the values of a plan. It stands beside the graph, not in it."""
    attach_observers_and_statistics(prepared)
    prepared.weight_layers = planned_weight_layers(prepared)


def attach_observers_and_statistics(prepared: PreparedModel) -> None:
    """Make ``observers`` and ``calibration_statistics``, and leave ``weight_layers`` as they are.

    ``make_observers`` makes one for each activation and mean that the plan measures. Weights have none here: a pass of
    ``convert`` measures them, once batch norms are folded (``observe_weights``).
    """
    prepared.observers = make_observers(prepared.plan)
    move_to_device_of(prepared.observers, prepared.graph_module)
    context = pass_context(prepared, prepared.plan)
    in_float = joins_of_floats(prepared.graph_module, context)
    prepared.calibration_statistics = CalibrationStatistics(
        prepared.graph_module, prepared.plan, prepared.observers, context.joins(), in_float
    )


def attach_no_statistics(prepared: PreparedModel) -> None:
    """Leave ``observers`` empty: what was trained has its qparams."""
    prepared.observers = nn.ModuleDict()
    prepared.calibration_statistics = CalibrationStatistics(prepared.graph_module, QuantPlan(), prepared.observers)


def planned_weight_layers(prepared: PreparedModel) -> nn.ModuleDict:
    """Return the layers of whose weights the plan wants the rounding to be learned, before anything is learned."""
    weights = [policy for ref, policy in prepared.plan.policies.items() if ref.kind == "parameter"]
    makers = {id(policy.observer): policy.observer for policy in weights if isinstance(policy, Observed)}
    if not any(isinstance(make(), LearnedRounding) for make in makers.values()):
        return nn.ModuleDict()
    context = pass_context(prepared, prepared.plan)
    folded = PassManager((fold_conv_bn,)).run(copy.deepcopy(prepared.graph_module), context)
    return layers_with_learned_rounding(folded, context)
