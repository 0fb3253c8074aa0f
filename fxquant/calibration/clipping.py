"""Counts the values that qparams clip, and those that lie far beyond the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fxquant.observers.bins import Bins
from fxquant.observers.histogram import HistogramObserver
from fxquant.plan.spec import QParams

USUAL = 0.999
"""The share of the values whose magnitudes count as usual."""

BEYOND = 4.0
"""An outlier lies so many times as far from 0 as the usual ones."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """Parts of all values that were counted, 0 to 1."""

    values: int
    clipped: float
    """Beyond the quantization range by more than half a step."""
    outliers: float
    """``BEYOND`` times as far from 0 as the largest of the ``USUAL`` ones, or farther."""
    reach: float
    """The largest magnitude, divided by that of the usual ones."""


def clipping_of(observer: Any, qparams: QParams) -> Clipping | None:
    """Count the clipped values and the outliers; return None if the observer counts nothing.

    Values are taken to be spread evenly within a bin.
    """
    if not isinstance(observer, HistogramObserver):
        return None
    rows = zip(
        observer.counts.reshape(-1, observer.bins),
        observer.min_val.reshape(-1),
        observer.max_val.reshape(-1),
        qparams.scale.reshape(-1).tolist(),
        qparams.zero_point.reshape(-1).tolist(),
        strict=True,
    )
    total = clipped = outliers = 0.0
    reach = 0.0
    for counts, low, high, scale, zero_point in rows:
        if not int(counts.sum()):
            continue
        bins = Bins.of(counts, low, high)
        first = (qparams.scheme.quant_min - zero_point - 0.5) * scale
        last = (qparams.scheme.quant_max - zero_point + 0.5) * scale
        total += float(bins.counts.sum())
        clipped += _beyond(bins, first, last)
        magnitudes = bins.magnitudes()
        usual = float(magnitudes.quantile(USUAL))
        if usual > 0:
            outliers += _beyond(magnitudes, -1.0, BEYOND * usual)
            reach = max(reach, float(magnitudes.high) / usual)
    return Clipping(int(total), clipped / total, outliers / total, reach) if total else None


def _beyond(bins: Bins, first: float, last: float) -> float:
    """Count the values below ``first`` and above ``last``."""
    low = 0.0 if first <= bins.low else _below(bins, first)
    return low + (0.0 if last >= bins.high else float(bins.counts.sum()) - _below(bins, last))


def _below(bins: Bins, end: float) -> float:
    inside = ((end - bins.edges[:-1]) / bins.width).clamp(0, 1)
    return float((inside * bins.counts).sum())
