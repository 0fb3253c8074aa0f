"""Chooses the range that keeps most of the information: the least Kullback-Leibler divergence."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxquant.observers.bins import Bins, least, pieces, qparams
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

    def choose(self, bins: Bins) -> tuple[Tensor, Tensor]:
        return least_divergence(bins, self.scheme, self.eps.cpu())


def least_divergence(bins: Bins, scheme: QScheme, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the range with the smallest divergence, of ``CANDIDATES`` evenly spaced ones; of equals the widest."""
    parts = torch.arange(CANDIDATES, 0, -1, dtype=torch.float64)
    reach = torch.maximum(-bins.low, bins.high).unsqueeze(-1) * parts / CANDIDATES
    low, high = bins.within(-reach, reach)
    index = least(divergences(bins, low, high, scheme, eps)).unsqueeze(-1)
    return low.gather(-1, index).squeeze(-1), high.gather(-1, index).squeeze(-1)


def divergences(bins: Bins, low: Tensor, high: Tensor, scheme: QScheme, eps: Tensor) -> Tensor:
    """Return the divergence that each of several ranges would cause.

    Args:
        low, high: float32 [..., K]; the first is the range of all values.
        scheme: Kind of the qparams.
        eps: float32 [1], the smallest scale.

    Returns:
        float64 [..., K], in nats; inf where a quantized value has clipped values alone, where more than
        ``MOST_CLIPPED`` are clipped, and, but for the first, where scales are narrower than bins: what they would lose
        cannot be seen then.
    """
    scale, zero_point = qparams(low, high, scheme, eps)
    counts = _without_the_peak_at_zero(bins)
    last_bin = (bins.sizes - 1).unsqueeze(-1)
    first = torch.searchsorted(bins.edges, low.double().contiguous(), right=True) - 1
    last = torch.searchsorted(bins.edges, high.double().contiguous()) - 1
    ends = [torch.minimum(each.clamp(min=0), last_bin) for each in (first, last)]
    centres = (bins.edges[..., 1:] + bins.edges[..., :-1]) / 2
    wide = [each.reshape(-1, each.shape[-1]) for each in (counts, centres)]
    narrow = [each.reshape(-1, each.shape[-1]) for each in (*ends, scale, zero_point)]
    lost, kept = torch.empty_like(narrow[-1]), torch.empty_like(narrow[-1])
    for rows, candidates, longest in pieces(bins.sizes.flatten().clamp(min=_integers(scheme)), low.shape[-1]):
        ours = (*(each[rows, :longest] for each in wide), *(each[rows, candidates] for each in narrow))
        lost[rows, candidates], kept[rows, candidates] = _compared(*ours, scheme=scheme)
    lost, kept = lost.view(low.shape), kept.view(low.shape)
    visible = scale >= bins.width.unsqueeze(-1)
    visible[..., 0] = True
    usual = kept >= (1 - MOST_CLIPPED) * counts.sum(-1, keepdim=True)
    return torch.where(visible & usual & ~lost.isnan(), lost, math.inf)


def _compared(
    counts: Tensor, centres: Tensor, first: Tensor, last: Tensor, scale: Tensor, zero_point: Tensor, *, scheme: QScheme
) -> tuple[Tensor, Tensor]:
    """Return the divergence of each range, not yet judged, and how many values it does not clip; float64 [C, K].

    Args:
        counts, centres: Of bins, float64 [C, n].
        first, last: The bins that a range ends in, int64 [C, K].
        scale, zero_point: float64 [C, K].
        scheme: Kind of the qparams.
    """
    index, first, last = torch.arange(counts.shape[-1]), first.unsqueeze(-1), last.unsqueeze(-1)
    counts = counts.unsqueeze(-2)
    kept = torch.where((index >= first) & (index <= last), counts, 0.0)
    piled = torch.zeros_like(kept).scatter_add_(-1, torch.clamp(index, first, last), counts.expand_as(kept))
    steps = torch.round(centres.unsqueeze(-2) / scale.unsqueeze(-1) + zero_point.unsqueeze(-1))
    steps = (steps.clamp(scheme.quant_min, scheme.quant_max) - scheme.quant_min).long()
    filled = (piled > 0).double()
    shape = (*scale.shape, _integers(scheme))
    sums = torch.zeros(shape, dtype=torch.float64).scatter_add_(-1, steps, kept)
    sizes = torch.zeros(shape, dtype=torch.float64).scatter_add_(-1, steps, filled)
    left = (sums / sizes.clamp(min=1)).gather(-1, steps)
    before = piled / piled.sum(-1, keepdim=True)
    after = left * filled / kept.sum(-1, keepdim=True)
    lost = torch.where(before > 0, before * (before / after).log(), 0.0).sum(-1)
    return lost, kept.sum(-1)


def _integers(scheme: QScheme) -> int:
    return scheme.quant_max - scheme.quant_min + 1


def _without_the_peak_at_zero(bins: Bins) -> Tensor:
    """Return the counts, but at most as many values in the bin of 0 as in the fuller one beside it, or one."""
    counts, last = bins.counts, (bins.sizes - 1).unsqueeze(-1)
    index = torch.round(-bins.edges[..., 0] / bins.width).long().unsqueeze(-1)
    before = torch.where(index > 0, counts.gather(-1, torch.minimum((index - 1).clamp(min=0), last)), 0.0)
    behind = torch.where(index < last, counts.gather(-1, torch.minimum((index + 1).clamp(min=0), last)), 0.0)
    at_zero = torch.minimum(index.clamp(min=0), last)
    peak = counts.gather(-1, at_zero)
    cut = torch.minimum(peak, torch.maximum(before, behind).clamp(min=1.0))
    inside = (index >= 0) & (index <= last) & (last > 0)
    return counts.scatter(-1, at_zero, torch.where(inside, cut, peak))
