"""Values so small that the smallest scale of their observer leaves most steps of the grid unused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxquant.plan.spec import QScheme

FEW_STEPS = 0.25
"""Part of a grid: values that reach fewer steps have lost two bits and more."""

WHAT = "values are so small that the smallest scale leaves them few steps of the grid"
HINT = "scale the data up (how is it normalized?); where the observer was given an eps=, give it a smaller one"


@dataclass(frozen=True, slots=True)
class BelowSmallestScale:
    """What the smallest scale costs."""

    text: str
    """One line, in figures."""
    unused: float
    """How many times the steps that are used the grid has."""


def below_smallest_scale(observer: Any) -> BelowSmallestScale | None:
    """The channel of an observer that loses most by ``eps``; None where none loses more than a bit or two.

    Args:
        observer: With ``min_val``, ``max_val``, ``eps`` and ``scheme``; of any other nothing is known.
    """
    state: list[Any] = [getattr(observer, name, None) for name in ("min_val", "max_val", "eps")]
    if not all(isinstance(each, Tensor) and each.numel() for each in state):
        return None
    low, high, eps = state
    low, high, smallest = low.double().flatten(), high.double().flatten(), float(eps)
    steps = observer.scheme.quant_max - observer.scheme.quant_min
    used = _reach(low, high, observer.scheme) / (smallest * steps)
    lost = (low <= high) & (used > 0) & (used < FEW_STEPS)
    if not bool(lost.any()):
        return None
    worst = int(torch.where(lost, used, torch.inf).argmin())
    who = f"channel {worst}: " if low.numel() > 1 else ""
    text = f"{who}{low[worst]:.3g} to {high[worst]:.3g} is {used[worst] * steps:.1f} of {steps} steps"
    return BelowSmallestScale(f"{text}: the observer's eps= keeps scales above {smallest:.3g}", 1 / float(used[worst]))


def _reach(low: Tensor, high: Tensor, scheme: QScheme) -> Tensor:
    """What the grid of a range covers, in real units, if no scale is too small for it."""
    if scheme.float_qparams:
        return high - low
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    return 2 * torch.maximum(-low, high) if scheme.symmetric else high - low
