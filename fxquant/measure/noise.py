"""Measures the noise of quantization: of tensors, of sums over batches, and of units alone and in their place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from fxquant.fake_quantize.qparams import from_integers, to_integers
from fxquant.graph.query import module_of
from fxquant.measure.runner import ROUNDINGS, first_tensor, run_nodes
from fxquant.nn.simulated_recurrent import FakeQuantizedMatrices
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import QParams

WEIGHT_SHARE = 0.5
"""Of the noise that a unit makes alone: from here on its weight is to blame."""


def sqnr(reference: Tensor, other: Tensor) -> float:
    """Compute the signal to quantization noise ratio: ``10·log10(Σ reference² / Σ (reference - other)²)``.

    Values of the reference that are inf or NaN are left out. Where the other has them and the reference has not, the
    noise is infinite. All sums are float64.

    Args:
        reference: float, of any shape, in any unit.
        other: float, of the same shape and in the same unit.

    Returns:
        dB. inf without any noise; -inf with infinite noise, or with noise and no signal; NaN without both: all values
        are 0 in both, or none is left.
    """
    exact, _, error = with_error(reference, other)
    return decibels(float(exact.square().sum()), float(error.square().sum()))


def with_error(reference: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the reference, the other, and the magnitude of their difference, by the rules of ``sqnr``: 0 for what is
    left out, inf for infinite noise; float64, of the same shape."""
    exact, given = reference.detach().double(), other.detach().double()
    error = (exact - given).abs_()
    if not bool(error.sum().isfinite()):  # a difference is finite where both values are
        usable = exact.isfinite()
        exact, given = exact.where(usable, 0.0), given.where(usable, 0.0)
        error = (exact - given).abs_().nan_to_num_(nan=math.inf, posinf=math.inf)
    return exact, given, error


def decibels(signal: float, noise: float) -> float:
    """Compute ``10·log10(signal / noise)`` of two powers, by the rules of ``sqnr`` where one is 0 or inf."""
    if noise == 0:
        return math.inf if signal > 0 else math.nan
    return 10 * math.log10(signal / noise) if signal > 0 and noise < math.inf else -math.inf


def in_words(value: float) -> str:
    """Write decibels as a table shows them: a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.1f}"


@dataclass(frozen=True, slots=True)
class Deviation:
    """Tells how far one tensor of a quantized model lies from that of the float model, over all batches."""

    sqnr: float
    """In dB, with the rules of ``sqnr``."""
    cosine: float
    """Cosine of the angle between the two, 1 where they point the same way; NaN where one of them is 0."""
    largest: float
    """Largest difference, a float value."""
    lost: float
    """Share of the signal that noise drowns, 0 to 1: of the whole, or, if that is more, of the average channel."""
    channel: int
    """The channel that loses most."""


@dataclass(slots=True)
class DeviationSums:
    """Keeps the sums of which a ``Deviation`` is computed, float64, one of each kind per channel, and no values.

    Infinities and NaN count as in ``sqnr``.
    """

    signal: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    noise: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    peak: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    """Largest value of the reference, without its sign."""
    power: float = 0.0
    product: float = 0.0
    largest: float = 0.0

    def add(self, reference: Tensor, other: Tensor, axis: int) -> None:
        """Add the values of one batch.

        Args:
            reference: float, of any shape.
            other: float, of that shape.
            axis: Dimension that counts the channels.
        """
        if not reference.numel():
            return
        exact, given, error = with_error(*(_channels_first(x, axis) for x in (reference, other)))
        products = torch.empty_like(exact)  # one piece of memory for all: to get another takes longer than to fill it
        self.signal = _sum(self.signal, torch.square(exact, out=products).sum(1).cpu())
        self.noise = _sum(self.noise, torch.square(error, out=products).sum(1).cpu())
        self.peak = _largest(self.peak, torch.abs(exact, out=products).amax(1).cpu())
        self.power += float(torch.square(given, out=products).sum())
        self.product += float(torch.mul(exact, given, out=products).sum())
        self.largest = max(self.largest, float(error.max()))

    def merge(self, other: DeviationSums) -> None:
        """Add the sums of another batch: as ``add`` does with its values, to the bit."""
        if not len(other.signal):
            return
        self.signal, self.noise = _sum(self.signal, other.signal), _sum(self.noise, other.noise)
        self.peak = _largest(self.peak, other.peak)
        self.power += other.power
        self.product += other.product
        self.largest = max(self.largest, other.largest)

    def to_numbers(self) -> list[Any]:
        """Return the sums as JSON can hold them."""
        rows = [each.tolist() for each in (self.signal, self.noise, self.peak)]
        return [*rows, self.power, self.product, self.largest]

    @classmethod
    def of_numbers(cls, numbers: Sequence[Any]) -> DeviationSums:
        """Make what ``to_numbers`` was called of."""
        signal, noise, peak = (torch.tensor(each, dtype=torch.float64) for each in numbers[:3])
        return cls(signal, noise, peak, *numbers[3:])

    @property
    def total_lost(self) -> float:
        """Noise over signal; inf where there is noise and no signal."""
        return _ratio(float(self.noise.sum()), float(self.signal.sum()))

    def result(self) -> Deviation:
        """Compute the deviation over all batches that were added."""
        signal, noise = float(self.signal.sum()), float(self.noise.sum())
        lengths = math.sqrt(signal) * math.sqrt(self.power)
        shares = torch.tensor(
            [min(1.0, _ratio(n, s)) for n, s in zip(self.noise.tolist(), self.signal.tolist(), strict=True)]
        )
        average = float(shares.mean()) if len(shares) else 0.0
        return Deviation(
            sqnr=decibels(signal, noise) if len(self.signal) else math.nan,
            cosine=self.product / lengths if lengths > 0 else math.nan,
            largest=self.largest,
            lost=max(min(1.0, self.total_lost), average),
            channel=int(shares.argmax()) if len(shares) else 0,
        )


def _ratio(noise: float, signal: float) -> float:
    if noise == 0:
        return 0.0
    return noise / signal if signal > 0 else math.inf


def _channels_first(x: Tensor, axis: int) -> Tensor:
    """float64 [C, all else]: squares of float32 values neither vanish nor overflow."""
    x = x.detach()
    x = x.reshape(1, 1) if x.dim() == 0 else x.movedim(axis, 0)
    rows = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    return rows.copy_(x).reshape(x.shape[0], -1)


def _sum(total: Tensor, more: Tensor) -> Tensor:
    total, more = _as_long(total, more)
    return total + more


def _largest(total: Tensor, more: Tensor) -> Tensor:
    return torch.maximum(*_as_long(total, more))


def _as_long(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both as long as the longer one: how many channels there are may depend on the batch."""
    size = max(len(a), len(b))
    return tuple(torch.nn.functional.pad(x, (0, size - len(x))) for x in (a, b))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class UnitNoise:
    """Signal to noise of one unit's result, in dB, against what the float model has there.

    inf without any noise; NaN where both results are 0 throughout, of which nothing can be said.
    """

    isolated: float
    """The int8 unit on the float model's own values, rounded to the unit's qparams."""
    accumulated: float
    """The int8 model, run from its inputs to this point."""
    weight: float
    """The float unit with nothing but its weight rounded; inf for a unit without a weight."""

    @property
    def part(self) -> Literal["weight", "activation", ""]:
        """Tell what makes most of the noise that the unit makes alone: its weight, or its inputs and its result."""
        if self.isolated == math.inf or math.isnan(self.isolated):
            return ""
        return "weight" if 10 ** ((self.isolated - self.weight) / 10) >= WEIGHT_SHARE else "activation"


def unit_noise(
    unit: QuantUnit,
    plan: QuantPlan,
    module: nn.Module,
    result: Tensor,
    floats: Mapping[str, Any],
    simulated: Mapping[str, Node],
    sizes: tuple[Any, ...] = (),
) -> UnitNoise:
    """Return the noise of one unit.

    Args:
        unit: As ``plan`` has it.
        module: The unit in the int8 model.
        result: What ``module`` gave when the int8 model ran.
        floats: Every value of the float model, by the name of its node.
        simulated: The nodes of the simulation, by name.
        sizes: What the module takes beside its inputs, computed at run time.
    """
    node = simulated[unit.called]
    args, kwargs = map_arg((node.args, node.kwargs), lambda arg: floats[arg.name])
    if unit.inputs:
        refs = [unit.roles[role] for role in unit.inputs]
        args, kwargs = tuple(integers(floats[ref.name], plan.qparams[ref]) for ref in refs) + tuple(sizes), {}
    y = plan.qparams[unit.roles["y"]] if "y" in unit.roles else None
    expected, has_weight = first_tensor(floats[unit.root]), "weight" in unit.roles
    return UnitNoise(
        isolated=sqnr(expected, dequantized(first_tensor(module(*args, **kwargs)), y)),
        accumulated=sqnr(expected, dequantized(first_tensor(result), y)),
        weight=sqnr(expected, evaluate(unit, simulated, floats, rounding=False)) if has_weight else math.inf,
    )


def evaluate(unit: QuantUnit, nodes: Mapping[str, Node], values: Mapping[str, Any], *, rounding: bool) -> Tensor:
    """Return the result of a unit's nodes in the simulation, before it is rounded.

    Args:
        unit: As the plan has it.
        nodes: The nodes of the simulation, by name.
        values: What the unit reads, by name, before it is rounded.
        rounding: Whether inputs are rounded to their qparams; a weight always is.
    """

    def value_of(arg: Node) -> Any:
        module = module_of(arg)
        if not isinstance(module, ROUNDINGS):
            return values[arg.name]
        value = values[arg.all_input_nodes[0].name]
        return module(value) if rounding else value

    members = [nodes[name] for name in unit.nodes]
    read = {arg for node in members for arg in node.all_input_nodes}.difference(members)
    layers = {node: module_of(node) for node in members}
    inner = {node: module for node, module in layers.items() if isinstance(module, FakeQuantizedMatrices)}
    instead = {} if rounding else {node: module.weights_only for node, module in inner.items()}
    result: Tensor = first_tensor(run_nodes(members, {arg: value_of(arg) for arg in read}, instead))
    return result


def dequantized(values: Tensor, qparams: QParams | None) -> Tensor:
    """Return the float values that quantized values stand for; float values as they are."""
    return values if qparams is None else from_integers(values, qparams.scale, qparams.zero_point, qparams.scheme)


def integers(values: Tensor, qparams: QParams) -> Tensor:
    """Quantize float values."""
    return to_integers(values, qparams.scale, qparams.zero_point, qparams.scheme)
