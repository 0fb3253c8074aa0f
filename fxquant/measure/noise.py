"""Where the noise of a quantized model comes from: each unit alone, and together with all that came before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from fxquant.fake_quantize.qparams import from_integers, to_integers
from fxquant.graph.query import module_of
from fxquant.measure.runner import ROUNDINGS, run_nodes
from fxquant.nn.base import QuantizedModule
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import QParams

WEIGHT_SHARE = 0.5
"""Of the noise that a unit makes alone: from here on its weight is to blame."""


@dataclass(frozen=True, slots=True)
class UnitNoise:
    """Signal to noise of one unit's result, in dB, against what the float model has there.

    inf without any noise; NaN where both results are 0 throughout, of which nothing can be said.
    """

    isolated: float
    """The int8 unit on the float model's own values, rounded to the unit's grids."""
    accumulated: float
    """The int8 model, run from its inputs to this point."""
    weight: float
    """The float unit with nothing but its weight rounded; inf for a unit without a weight."""

    @property
    def part(self) -> Literal["weight", "activation", ""]:
        """What makes most of the noise that the unit makes alone: its weight, or its inputs and its result."""
        if self.isolated == math.inf or math.isnan(self.isolated):
            return ""
        return "weight" if 10 ** ((self.isolated - self.weight) / 10) >= WEIGHT_SHARE else "activation"


def sqnr(reference: Tensor, other: Tensor) -> float:
    """Signal to quantization noise of ``other``, in dB: 10·log10(Σ reference² / Σ (reference - other)²).

    inf where both are equal; NaN where both are 0, or empty: there is no signal.
    """
    exact = reference.double()
    return decibels(exact.square().sum().item(), (exact - other.double()).square().sum().item())


def decibels(signal: float, noise: float) -> float:
    """``10·log10(signal / noise)`` of two powers; inf without noise, -inf without signal, NaN without both."""
    if noise == 0:
        return math.inf if signal > 0 else math.nan
    return 10 * math.log10(signal / noise) if signal > 0 and noise < math.inf else -math.inf


def in_words(value: float) -> str:
    """Decibels as a table shows them; of no signal, a dash."""
    return "–" if math.isnan(value) else f"{value:.1f}"


def unit_noise(
    unit: QuantUnit,
    plan: QuantPlan,
    module: QuantizedModule,
    result: Tensor,
    floats: Mapping[str, Any],
    simulated: Mapping[str, Node],
    sizes: tuple[Any, ...] = (),
) -> UnitNoise:
    """The noise of one unit.

    Args:
        unit: As ``plan`` has it.
        module: The unit in the int8 model.
        result: What ``module`` gave when the int8 model ran.
        floats: Every value of the float model, by the name of its node.
        simulated: The nodes of the simulation, by name.
        sizes: What the module takes beside its inputs, computed at run time.
    """
    node = simulated[unit.root]
    args, kwargs = map_arg((node.args, node.kwargs), lambda arg: floats[arg.name])
    if unit.inputs:
        refs = [unit.roles[role] for role in unit.inputs]
        args, kwargs = tuple(integers(floats[ref.name], plan.qparams[ref]) for ref in refs) + tuple(sizes), {}
    y = plan.qparams[unit.roles["y"]] if "y" in unit.roles else None
    expected, has_weight = floats[unit.root], "weight" in unit.roles
    return UnitNoise(
        isolated=sqnr(expected, real(module(*args, **kwargs), y)),
        accumulated=sqnr(expected, real(result, y)),
        weight=sqnr(expected, evaluate(unit, simulated, floats, rounding=False)) if has_weight else math.inf,
    )


def evaluate(unit: QuantUnit, nodes: Mapping[str, Node], values: Mapping[str, Any], *, rounding: bool) -> Tensor:
    """The result of a unit's nodes in the simulation, before it is rounded.

    Args:
        unit: As the plan has it.
        nodes: The nodes of the simulation, by name.
        values: What the unit reads, by name, before it is rounded.
        rounding: Whether inputs are rounded to their grids; a weight always is.
    """

    def value_of(arg: Node) -> Any:
        module = module_of(arg)
        if not isinstance(module, ROUNDINGS):
            return values[arg.name]
        value = values[arg.all_input_nodes[0].name]
        return module(value) if rounding else value

    members = [nodes[name] for name in unit.nodes]
    read = {arg for node in members for arg in node.all_input_nodes}.difference(members)
    result: Tensor = run_nodes(members, {arg: value_of(arg) for arg in read})
    return result


def real(values: Tensor, qparams: QParams | None) -> Tensor:
    """The real numbers that integers stand for; real numbers as they are."""
    return values if qparams is None else from_integers(values, qparams.scale, qparams.zero_point, qparams.scheme)


def integers(values: Tensor, qparams: QParams) -> Tensor:
    """Real numbers on a grid, as it stores them."""
    return to_integers(values, qparams.scale, qparams.zero_point, qparams.scheme)
