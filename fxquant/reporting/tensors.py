"""Facts on every value and weight that is quantized: range, histogram, qparams, share that is clipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxquant.graph.query import module_of, nodes_by_name
from fxquant.measure.noise import dequantized
from fxquant.nn.weight import WeightedModule
from fxquant.observers.bins import Bins
from fxquant.observers.histogram import HistogramObserver
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import Dynamic, Fixed, Handled, Means, Observed, QParams, QParamsPolicy, SharedWith
from fxquant.reporting.numbers import short, shorts
from fxquant.reporting.subject import Subject

MOST_BINS = 96
"""Of a histogram that is drawn; finer ones have neighbours added up."""
MOST_SCALES = 128
"""Scales per channel that are drawn; of more, the largest of each few neighbours."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values in bins of one width."""

    low: float
    """Lower edge of the first bin, a float value."""
    width: float
    counts: tuple[int, ...]

    @classmethod
    def of_bins(cls, bins: Bins) -> Histogram:
        """From a histogram of an observer, with as many neighbours added up as there is no room for."""
        together = -(-bins.counts.numel() // MOST_BINS)
        padded = torch.nn.functional.pad(bins.counts, (0, -bins.counts.numel() % together))
        counts = padded.view(-1, together).sum(1).long().tolist()
        return cls(float(bins.edges[0]), float(bins.width) * together, tuple(counts))

    @classmethod
    def of_values(cls, values: Tensor) -> Histogram | None:
        """Count the finite values of a tensor; None where there is none."""
        finite = values.detach().float().flatten()
        finite = finite[finite.isfinite()]
        if not finite.numel():
            return None
        low, high = (end.item() for end in finite.aminmax())
        high = high if high > low else low + (abs(low) or 1.0) * 1e-3
        counts = torch.histc(finite.cpu(), MOST_BINS, low, high).long().tolist()
        return cls(low, (high - low) / MOST_BINS, tuple(counts))


def tensor_facts(subject: Subject, seen: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Everything there is to say of the tensors of a plan.

    Args:
        subject: The model.
        seen: Name of a value -> a ``HistogramObserver`` that saw it on other data than the calibration's, for those
            of which the calibration kept no histogram.

    Returns:
        Name of a tensor, as units know it -> its facts, as the page shows them.
    """
    plan = subject.plan
    roles = {ref: unit for unit in plan.units for role, ref in unit.roles.items() if role == "weight"}
    weights = _Weights(subject)
    facts = {}
    for ref in dict.fromkeys([*plan.policies, *plan.qparams]):
        policy = plan.policies.get(ref)
        if isinstance(policy, Means):
            continue
        row: dict[str, Any] = {"policy": _policy(policy), "kind": "weight" if ref.kind == "parameter" else "value"}
        if ref in roles:
            row |= _of_weight(weights.find(roles[ref]))
        else:
            owner = plan.qparams_owner(ref).name if ref in plan.policies else ref.name
            row |= _observed(subject.observers.get(owner), seen.get(ref.name))
        if ref in plan.qparams:
            row |= _qparams(plan.qparams[ref])
            row |= _clipped(row)
        facts[ref.name] = row
    return facts


def _policy(policy: QParamsPolicy | None) -> str:
    if isinstance(policy, SharedWith):
        return f"qparams of {policy.source.name}" + (f", times {policy.factor:g}" if policy.factor != 1 else "")
    if isinstance(policy, Observed):
        made = policy.observer()
        return f"measured by {type(getattr(made, 'activation_post_process', made)).__name__}"
    if isinstance(policy, Dynamic) and policy.per == "token":
        return "chosen in each call, for each token"
    named = {Fixed: "fixed beforehand", Handled: "chosen by its handler", Dynamic: "chosen in each call"}
    return named.get(type(policy), "")


def _observed(observer: Any, other: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    low, high = getattr(observer, "min_val", None), getattr(observer, "max_val", None)
    if isinstance(low, Tensor) and isinstance(high, Tensor) and low.numel() and float(low.min()) <= float(high.max()):
        row |= {"min": short(float(low.min())), "max": short(float(high.max()))}
    if nonfinite := int(getattr(observer, "nonfinite_count", 0)):
        row["nonfinite"] = nonfinite
    for source, name in ((observer, "calibration"), (other, "data")):
        if isinstance(source, HistogramObserver) and source.counts.dim() == 1 and source.counts.any():
            histogram = Histogram.of_bins(Bins.of(source.counts, source.min_val, source.max_val))
            return row | _drawn(histogram, name)
    return row


def _of_weight(weight: Tensor | None) -> dict[str, Any]:
    if weight is None or not weight.numel():
        return {}
    histogram = Histogram.of_values(weight)
    row: dict[str, Any] = {"shape": "x".join(map(str, weight.shape))}
    if histogram is None:
        return row
    low, high = (short(end.item()) for end in weight.detach().aminmax())
    return row | {"min": low, "max": high} | _drawn(histogram, "the weight")


def _drawn(histogram: Histogram, source: str) -> dict[str, Any]:
    return {
        "source": source,
        "low": short(histogram.low),
        "width": short(histogram.width),
        "counts": list(histogram.counts),
    }


def _qparams(qparams: QParams) -> dict[str, Any]:
    scheme, scale, zero = qparams.scheme, qparams.scale.detach().double(), qparams.zero_point.detach().double()
    ends = ((scheme.quant_min - zero) * scale, (scheme.quant_max - zero) * scale)
    row: dict[str, Any] = {
        "scheme": str(scheme),
        "clip": [short(float(ends[0].min())), short(float(ends[1].max()))],
        "steps": [scheme.quant_min, scheme.quant_max],
    }
    if scale.numel() == 1:
        return row | {"scale": short(scale.item()), "zero": short(zero.item())}
    flat = scale.flatten()
    together = -(-flat.numel() // MOST_SCALES)
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % together))
    spread = [short(value) for value in (flat.min().item(), flat.median().item(), flat.max().item())]
    row |= {"channels": flat.numel(), "scales": shorts(padded.view(-1, together).amax(1)), "spread": spread}
    return row | ({} if zero.any() else {"zero": 0.0})


def _clipped(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the share of the values in bins beyond the quantization range, so at least so many are clipped.

    Qparams per channel have none, since each channel clips on its own.
    """
    low, high = row["clip"]
    counts = row.get("counts")
    if not counts or "channels" in row or not isinstance(low, float) or not isinstance(high, float):
        return {}
    half = row["scale"] / 2  # what rounds to the last step is not clipped
    starts = [row["low"] + index * row["width"] for index in range(len(counts))]
    outside = sum(
        count
        for count, start in zip(counts, starts, strict=True)
        if start + row["width"] <= low - half or start >= high + half
    )
    return {"clipped": short(outside / max(sum(counts), 1))}


class _Weights:
    """Finds the float weight of a unit: batch norm folded in where the simulation is there, else from the integers."""

    def __init__(self, subject: Subject) -> None:
        self._plan: QuantPlan = subject.plan
        self._graphs = [
            nodes_by_name(gm) for gm in (subject.simulated, subject.converted, subject.float_graph) if gm is not None
        ]

    def find(self, unit: QuantUnit) -> Tensor | None:
        for nodes in self._graphs:
            for name in unit.nodes:
                module = module_of(nodes[name]) if name in nodes else None
                kept = (
                    module.unpacked_weight() if isinstance(module, WeightedModule) else getattr(module, "weight", None)
                )
                if isinstance(kept, Tensor):
                    return self._real(kept, unit, module)
        return None

    def _real(self, weight: Tensor, unit: QuantUnit, module: Any) -> Tensor | None:
        if weight.is_floating_point():
            return weight
        own = isinstance(module, WeightedModule)  # its channels may lie along another axis than the float layer's
        qparams = module.qparams("weight") if own else self._plan.qparams.get(unit.roles["weight"])
        if qparams is None or qparams.scheme.bits < 8:  # two integers may lie in a byte
            return None
        return dequantized(weight, qparams)
