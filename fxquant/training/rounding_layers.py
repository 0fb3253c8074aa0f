"""Layers whose rounding can be learned: which they are, and the scales of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.fake_quantize.adaround import AdaRoundFakeQuantize
from fxquant.fake_quantize.from_policy import has_given_qparams
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.graph.query import called_module
from fxquant.nn.fake_quantize import FakeQuantizedWeight
from fxquant.nn.weight_forms import with_fake_quantized_weight, without_fake_quantized_weight
from fxquant.observers.minmax import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.observers.ranges import split_groups
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import QParams, QScheme
from fxquant.training.weighted_units import Left, refused_kind, split_by_refusal

RoundingSizes = Literal["mse", "observed"]

CANDIDATES = 100
"""Step sizes that are tried for each scale."""
SMALLEST_PART, LARGEST_PART = 0.2, 1.2
"""Of the step size that the observer chose: where the candidates begin and end."""
POWERS = (2.0, 0.5, 0.25, 0.125)
"""Parts of that step size that are tried where scales are powers of two."""


def rounding_layers(
    simulated: GraphModule, plan: QuantPlan, own: Mapping[str, Any], grids: RoundingSizes
) -> tuple[dict[str, Any], list[Left]]:
    """Make a layer for each unit whose rounding can be learned, with an ``AdaRoundFakeQuantize`` that is ready for it.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave. Not changed.
        plan: Its plan, with qparams.
        own: The layers that are there already, under the roots of their units.
        grids: ``"mse"``: the scales of least squared error; ``"observed"``: those of the plan.
            A scale that was given is never another.

    Returns:
        The layers by the roots of the units, and the units left out.
    """
    taken, left = split_by_refusal(simulated, plan, own, _refusal)
    layers: dict[str, Any] = {}
    for unit, node in taken:
        layer, ref, there = called_module(node), unit.roles["weight"], own.get(unit.root)
        qparams, is_given = plan.qparams[ref], has_given_qparams(plan.policies[ref])
        weight = layer.weight.detach()
        if there is None:
            plain = without_fake_quantized_weight(layer)
            there = with_fake_quantized_weight(plain, _ready(weight, qparams), layer.output_axis)
        rounding: Any = there.weight_fake_quant
        if rounding.V.requires_grad and grids == "mse" and not is_given:
            rounding.set_qparams(least_error_scale(weight, qparams), qparams.zero_point)
            rounding.initialize(weight)
        layers[unit.root] = there
    return layers, left


def least_error_scale(weight: Tensor, qparams: QParams) -> Tensor:
    """Return the scales with which rounding to nearest makes the least squared error; float32, shaped as ``scale``.

    Args:
        weight: float, any shape that has the axis of the qparams.
        qparams: Their scale, times parts of 0.2 to 1.2, gives the candidates.
    """
    best, least = qparams.scale, _errors(weight, qparams.scale, qparams)
    parts = torch.linspace(LARGEST_PART, SMALLEST_PART, CANDIDATES).tolist()
    for part in POWERS if qparams.scheme.power_of_two else parts:
        scale = qparams.scale * part
        errors = _errors(weight, scale, qparams)
        best, least = torch.where(errors < least, scale, best), torch.minimum(errors, least)
    return best


def _errors(weight: Tensor, scale: Tensor, qparams: QParams) -> Tensor:
    """Return the squared error of rounding to nearest, summed over the weights of each scale."""
    error = (
        (fake_quantize(weight, scale, qparams.zero_point, qparams.scheme) - weight).double().square()
    )  # of any magnitude
    if qparams.scheme.axis is None:
        return error.sum().reshape(1)
    values, kept = split_groups(error, qparams.scheme)
    return values.sum([dim for dim in range(values.dim()) if dim not in kept])


def _refusal(layer: FakeQuantizedWeight, scheme: QScheme, own: Any) -> str:
    """Why the rounding of a weight cannot be learned; empty if it can."""
    if own is not None and not isinstance(own.weight_fake_quant, AdaRoundFakeQuantize):
        return f"{type(own.weight_fake_quant).__name__} has integers of its own"
    if reason := refused_kind(layer):
        return reason
    if scheme.float_qparams or not scheme.symmetric:
        return f"AdaRound learns with symmetric qparams, and these are {scheme}"
    if scheme.group_size is not None:
        return f"AdaRound learns without groups, and this is {scheme}"
    return ""


def _ready(weight: Tensor, qparams: QParams) -> AdaRoundFakeQuantize:
    kind = MinMaxObserver if qparams.scheme.axis is None else PerChannelMinMaxObserver
    rounding = AdaRoundFakeQuantize(kind, scheme=qparams.scheme).to(weight.device)
    rounding(weight)
    rounding.set_qparams(qparams.scale, qparams.zero_point)
    rounding.disable_observer()
    rounding.initialize(weight)
    rounding.set_soft_rounding(False)
    return rounding


def only_modules(layers: Mapping[str, nn.Module]) -> nn.ModuleDict:
    """Return the layers under the roots of their units; past add_module, which refuses the names of attributes."""
    modules = nn.ModuleDict()
    modules._modules.update(layers)
    return modules
