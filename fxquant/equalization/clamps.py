"""Measures how near values come to the bounds of clamps, and limits factors so that they stay away from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fxquant.equalization.factors import Limits
from fxquant.errors import error_context
from fxquant.graph.interpreter import WatchedRun
from fxquant.plan.region import Bound, Region


class Extremes:
    """The smallest and the largest value of each channel of some values, over all batches.

    Args:
        axes: Name of a node -> the dimension of its value that counts channels, from the end.
    """

    def __init__(self, axes: Mapping[str, int]) -> None:
        self._axes = axes
        self.low: dict[str, Tensor] = {}
        """float64 [C]."""
        self.high: dict[str, Tensor] = {}

    def observe(self, gm: GraphModule, bound: Mapping[str, Any]) -> None:
        """Run one batch. What the graph writes to its buffers stays there."""
        with torch.no_grad():
            WatchedRun(gm, bound, lambda node, value: self.see(node.name, value)).run()

    def see(self, name: str, value: Any) -> None:
        """Take in a value, if it is one of those."""
        axis = self._axes.get(name)
        if axis is None or not isinstance(value, Tensor) or not value.numel():
            return
        channels = value.detach().double().movedim(axis, 0).flatten(1).cpu()
        low, high = channels.amin(1), channels.amax(1)
        self.low[name] = torch.minimum(low, self.low.get(name, low))
        self.high[name] = torch.maximum(high, self.high.get(name, high))


def limits_of(region: Region, extremes: Extremes, headroom: float) -> Limits:
    """Return the limits by which no value that data has shown comes to a bound.

    A channel that reaches a bound as it is keeps its scale. Of others, ``largest / factor * headroom <= bound``.
    """
    limits = Limits.usual(region)
    fixed = torch.zeros(region.channels, dtype=torch.bool)
    for bound in region.bounds:
        low, high = extremes.low.get(bound.value), extremes.high.get(bound.value)
        for values, end in (
            (high, bound.high),
            (None if low is None else -low, None if bound.low is None else -bound.low),
        ):
            if end is not None:
                fixed |= _narrow(limits, bound, values, end, headroom)
    limits.low[fixed] = limits.high[fixed] = 1.0
    return limits


def _narrow(limits: Limits, bound: Bound, largest: Tensor | None, end: float, headroom: float) -> Tensor:
    """Raise the lower limits of a region, and return which channels reach a bound."""
    count = len(limits.low)
    reached = torch.zeros(count + 1, dtype=torch.bool)
    if largest is None:  # no batch had a value there
        reached[torch.tensor(bound.factors)] = True
        return reached[:-1]
    at = torch.tensor(bound.factors)
    at = torch.where(at < 0, count, at)
    highest = torch.full((count + 1,), -torch.inf, dtype=torch.float64)
    highest.scatter_reduce_(0, at, largest.nan_to_num(nan=torch.inf), "amax")
    limits.low[:] = torch.maximum(limits.low, highest[:-1].clamp(min=0.0) * (headroom / end))
    return highest[:-1] >= end


def measure(
    gm: GraphModule, regions: Sequence[Region], inputs: Iterable[Mapping[str, Any]], more: Mapping[str, int]
) -> Extremes:
    """Run all batches, and note the extremes of what the clamps of some regions read, and of other values.

    Args:
        gm: A graph that may be changed by running it.
        regions: The regions.
        inputs: Of each batch, by name.
        more: Name of a node -> the dimension of its value that counts channels, from the end.
    """
    extremes = Extremes({bound.value: bound.axis for region in regions for bound in region.bounds} | dict(more))
    for index, bound in enumerate(inputs):
        with error_context(f"calibration batch {index}"):
            extremes.observe(gm, bound)
    return extremes
