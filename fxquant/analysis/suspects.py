"""Says what spoils a layer: faults that rounding does not explain, then the usual suspects, as tables of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fxquant.analysis.comparison_points import ComparisonPoint, ends
from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.query import module_of
from fxquant.measure.noise import DeviationSums
from fxquant.nn.base import QuantizedModule
from fxquant.nn.fake_quantize import DequantizedWeight, FakeQuantizedWeight
from fxquant.plan.spec import QParams

SAME_SCALE = 1e-3
"""Relative: scales that differ by less are taken as one."""
HALF = 0.5
"""Of the noise: from here on one source is to blame."""
OUTLIER = 20.0
"""Times the median of the channels' peaks: a channel that reaches so far leaves the others few steps."""
FEW_BITS = 6
"""Up to so many, the number of bits is what to look at first."""


def fault_of(point: ComparisonPoint, node: Node) -> str:
    """Describe what rounding does not explain; empty where it may explain all."""
    return next((found for rule in (_other_qparams, _other_weight) if (found := rule(point, node))), "")


def _other_qparams(point: ComparisonPoint, node: Node) -> str:
    """Find qparams in the modules that are not those of the plan, which the neighbours keep to."""
    for role, used, expected in _qparams_used(point, node):
        if bool((~torch.isclose(used.scale.cpu(), expected.scale.cpu(), rtol=SAME_SCALE, atol=0.0)).any()):
            ratio = float((used.scale / expected.scale).flatten()[0])
            return (
                f"the scale of {role} is {ratio:.4g} times what was planned ({float(expected.scale.flatten()[0]):.4g})"
            )
        if not torch.equal(used.zero_point.cpu().float(), expected.zero_point.cpu().float()):
            return f"the zero point of {role} is not what was planned"
    return ""


def _qparams_used(point: ComparisonPoint, node: Node) -> list[tuple[str, QParams, QParams]]:
    """List operands in words, each with the qparams in the module and those that were planned."""
    found: list[tuple[str, QParams | None, QParams | None]] = []
    for module in point.chain:
        if isinstance(module, StaticFakeQuantize):
            found.append(("its result", module.qparams(), point.qparams))
        elif isinstance(module, QuantizedModule):
            found += [("its result", module.qparams(role), point.qparams) for role in module._schemes]
    own = module_of(node)
    if isinstance(own, StaticFakeQuantize):
        found.append(("its result", own.qparams(), point.qparams))
    elif isinstance(own, QuantizedModule):
        for role in own._schemes:
            expected = point.planned.get(role) if role != "y" else point.qparams
            words = {"y": "its result", "weight": "its weight"}.get(role, f"its input {role}")
            found.append((words, own.qparams(role), expected))
    for member in point.layers:
        if isinstance(member, FakeQuantizedWeight) and isinstance(member.weight_fake_quant, StaticFakeQuantize):
            found.append(("its weight", member.weight_fake_quant.qparams(), point.planned.get("weight")))
        elif isinstance(member, DequantizedWeight):
            used = QParams(member.weight_scheme, member.weight_scale, member.weight_zero_point)
            found.append(("its weight", used, point.planned.get("weight")))
    return [
        (role, used, expected)
        for role, used, expected in found
        if used is not None
        and expected is not None
        and used.scale.shape == expected.scale.shape
        and used.scheme.signed == expected.scheme.signed  # a byte may be stored 128 steps further
    ]


def _other_weight(point: ComparisonPoint, node: Node) -> str:
    weights = point.weights
    share = 0.0 if weights is None else weights.changed()
    if not share:
        return ""
    assert weights is not None  # so it has a share
    largest = float((weights.given - weights.exact).abs().max())
    return (
        f"its weight is not that of the float model, rounded: {_percent(share)} of the values are over a step away, "
        f"by up to {largest:.3g}"
    )


@dataclass(frozen=True, slots=True)
class _Case:
    """Holds what is known of one layer."""

    point: ComparisonPoint
    sums: DeviationSums
    """Of the layer alone."""
    of_weight: DeviationSums
    """The same, with nothing but the weight quantized."""

    @property
    def spares_the_whole(self) -> bool:
        """Tell whether it is the average channel that is lost, beside few that make up most of the signal."""
        return self.sums.total_lost < HALF * self.sums.result().lost

    @property
    def blames_weight(self) -> bool:
        """Tell whether rounding the weight alone makes most of the noise."""
        if self.spares_the_whole:
            return self.of_weight.result().lost >= HALF * self.sums.result().lost
        return self.of_weight.total_lost >= HALF * self.sums.total_lost


def cause_of(point: ComparisonPoint, alone: DeviationSums, of_weight: DeviationSums) -> str:
    """Say what makes most of the noise of a layer.

    Args:
        point: The layer.
        alone: What it adds.
        of_weight: What it would add with nothing but its weight quantized; without values where that is not known.
    """
    case = _Case(point, alone, of_weight)
    return next(found for rule in _CAUSES if (found := rule(case)))


def _no_noise(case: _Case) -> str:
    return "" if float(case.sums.noise.sum()) else "it makes no noise"


def _clipped(case: _Case) -> str:
    facts, qparams = case.point.clipping, case.point.qparams
    if qparams is None or case.spares_the_whole or facts.clipping_noise < HALF * float(case.sums.noise.sum()):
        return ""
    low, high = ends(qparams)
    return (
        f"its result is clipped: {_percent(facts.share)} of the values lie beyond its range of {low:.4g} to "
        f"{high:.4g}; calibrate on data like this, or with an observer that keeps the whole range"
    )


def _few_bits(case: _Case) -> str:
    weights, qparams = case.point.weights, case.point.qparams
    if case.blames_weight and weights is not None and weights.qparams is not None:
        if weights.qparams.scheme.bits <= FEW_BITS:
            return f"its weight has {weights.qparams.scheme.bits} bits"
    elif qparams is not None and qparams.scheme.bits <= FEW_BITS:
        return f"its result has {qparams.scheme.bits} bits"
    return ""


def _outlier_in_weight(case: _Case) -> str:
    weights = case.point.weights
    if not case.blames_weight or weights is None or weights.qparams is None or weights.qparams.scale.numel() != 1:
        return ""
    outlier = _outlier(weights.peaks)
    return outlier and f"{outlier} in its weight: the others share few steps of one scale; use a scale per channel"


def _outlier_in_result(case: _Case) -> str:
    qparams = case.point.qparams
    if case.blames_weight or qparams is None:
        return ""
    outlier = _outlier(case.sums.peak)
    return outlier and f"{outlier} in its result: the others share few steps of one scale"


def _outlier(peaks: Tensor) -> str:
    if len(peaks) < 2:  # nothing to stand out from
        return ""
    median, (largest, channel) = float(peaks.median()), (x.item() for x in peaks.max(0))
    if largest <= OUTLIER * median or not median:
        return ""
    return f"channel {channel} reaches {largest:.4g}, {largest / median:.3g} times the median channel"


def _rounding(case: _Case) -> str:
    return f"rounding of its {'weight' if case.blames_weight else 'result'}"


_CAUSES: tuple[Callable[[_Case], Any], ...] = (
    _no_noise,
    _clipped,
    _few_bits,
    _outlier_in_weight,
    _outlier_in_result,
    _rounding,
)
"""From the surest to the most general; the first that answers counts."""


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else f"{100 * share:.1g} %"
