"""Chooses the range that keeps most of the information: the least Kullback-Leibler divergence."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxquant.observers.bins import Bins, least, qparams
from fxquant.observers.histogram import HistogramObserver
from fxquant.plan.spec import QScheme

CANDIDATES = 128
"""Ranges that are tried."""
MOST_CLIPPED = 0.1
"""Part of the values that a range may clip: what piles up at an end loses nothing by itself, so that clipping nearly
all would seem to be best."""


class EntropyObserver(HistogramObserver):
    """Compares the histogram, with what is clipped piled up at its ends, with what quantization would leave of it.

    A range is cut at one magnitude on both sides. Quantization leaves, of the values that are not clipped, the mean of
    those bins that get the same quantized value and hold any. 0 itself, most frequent after a ReLU and always exact,
    counts no more than the bin beside it.

    Args:
        All: As for ``HistogramObserver``.

    Raises:
        SpecError: see ``HistogramObserver``.

    Source:
        Migacz, "8-bit Inference with TensorRT", GTC 2017, slide 26, there for ranges that are symmetric around 0.
    """

    def choose(self, bins: Bins) -> tuple[float, float]:
        return least_divergence(bins, self.scheme, self.eps.cpu())


def least_divergence(bins: Bins, scheme: QScheme, eps: Tensor) -> tuple[float, float]:
    """Return the range with the smallest divergence, of ``CANDIDATES`` evenly spaced ones; of equals the widest."""
    reach = max(-bins.low, bins.high) * torch.arange(CANDIDATES, 0, -1, dtype=torch.float64) / CANDIDATES
    low, high = bins.within(-reach, reach)
    index = least(divergences(bins, low, high, scheme, eps))
    return float(low[index]), float(high[index])


def divergences(bins: Bins, low: Tensor, high: Tensor, scheme: QScheme, eps: Tensor) -> Tensor:
    """Return the divergence that each of several ranges would cause.

    Args:
        low, high: float32 [K]; the first is the range of all values.
        scheme: Kind of the qparams.
        eps: float32 [1], the smallest scale.

    Returns:
        float64 [K], in nats; inf where a quantized value has clipped values alone, where more than ``MOST_CLIPPED`` are
        clipped, and, but for the first, where scales are narrower than bins: what they would lose cannot be seen then.
    """
    scale, zero_point = (each[:, None] for each in qparams(low, high, scheme, eps))
    counts, centres = _without_the_peak_at_zero(bins), (bins.edges[1:] + bins.edges[:-1]) / 2
    index = torch.arange(counts.numel())
    first = torch.searchsorted(bins.edges, low.double(), right=True)[:, None] - 1
    last = torch.searchsorted(bins.edges, high.double())[:, None] - 1
    first, last = first.clamp(0, counts.numel() - 1), last.clamp(0, counts.numel() - 1)
    kept = torch.where((index >= first) & (index <= last), counts, 0.0)
    piled = torch.zeros_like(kept).scatter_add_(1, torch.clamp(index, first, last), counts.expand_as(kept))
    steps = torch.round(centres / scale + zero_point).clamp(scheme.quant_min, scheme.quant_max) - scheme.quant_min
    steps, filled = steps.long(), (piled > 0).double()
    shape = (kept.shape[0], scheme.quant_max - scheme.quant_min + 1)
    sums = torch.zeros(shape, dtype=torch.float64).scatter_add_(1, steps, kept)
    sizes = torch.zeros(shape, dtype=torch.float64).scatter_add_(1, steps, filled)
    left = (sums / sizes.clamp(min=1)).gather(1, steps)
    before = piled / piled.sum(1, keepdim=True)
    after = left * filled / kept.sum(1, keepdim=True)
    lost = torch.where(before > 0, before * (before / after).log(), 0.0).sum(1)
    visible = scale[:, 0] >= bins.width
    visible[0] = True
    usual = kept.sum(1) >= (1 - MOST_CLIPPED) * counts.sum()
    return torch.where(visible & usual & ~lost.isnan(), lost, math.inf)


def _without_the_peak_at_zero(bins: Bins) -> Tensor:
    index = int(torch.round(-bins.edges[0] / bins.width))
    counts = bins.counts.clone()
    if 0 <= index < counts.numel() and counts.numel() > 1:
        beside = counts[max(index - 1, 0) : index + 2].clone()
        beside[min(index, 1)] = 0
        counts[index] = min(float(counts[index]), max(float(beside.max()), 1.0))
    return counts
