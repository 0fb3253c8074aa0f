"""Where the values of each observer end: what a range is judged by while it is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxquant.kernels.fake_quantize.histogram import window_of
from fxquant.observers.histogram import HistogramObserver

SHARE = 1e-4
"""Of the values a histogram has counted: how many may lie beyond each end. A few outliers change nothing."""


def observed_range_of(observers: Sequence[Any]) -> Tensor:
    """Lower and upper end of what each observer has seen.

    Of a histogram for whole tensors, the ends of the bins beyond which lie at most ``SHARE`` of all values; of other
    observers the smallest and the largest value, of all channels.

    Args:
        observers: Those of ``fxquant.observers`` that keep ``min_val`` and ``max_val``; others count as unseen.

    Returns:
        float32 [observers, 2] on the CPU, in real units; inf and -inf where nothing was seen.
    """
    found = torch.stack([_extremes(each) for each in observers]).cpu() if observers else torch.empty(0, 2)
    by_bins: dict[int, list[int]] = {}
    for index, observer in enumerate(observers):
        if isinstance(observer, HistogramObserver) and observer.scheme.axis is None:
            by_bins.setdefault(observer.bins, []).append(index)
    for rows in by_bins.values():
        counts = torch.stack([observers[row].counts for row in rows]).cpu()
        found[rows] = _quantiles(counts, found[rows])
    return found


def _extremes(observer: Any) -> Tensor:
    low, high = getattr(observer, "min_val", None), getattr(observer, "max_val", None)
    if not isinstance(low, Tensor) or not isinstance(high, Tensor) or low.numel() == 0:
        return torch.tensor([torch.inf, -torch.inf])
    return torch.stack([low, high] if low.dim() == 0 else [low.amin(), high.amax()])


def _quantiles(counts: Tensor, extremes: Tensor) -> Tensor:
    """``counts``: int64 [n, bins]; ``extremes``: float32 [n, 2]."""
    window = window_of(extremes[:, 0], extremes[:, 1], counts.shape[1])
    until = counts.cumsum(1)
    total = until[:, -1:]
    beyond = (total * SHARE).long()
    first = torch.searchsorted(until, beyond, right=True)
    last = torch.searchsorted(until, total - beyond)
    index = torch.cat([first, last + 1], 1) + window.first.unsqueeze(1)
    ends = (index * window.width.unsqueeze(1)).float()
    ends = torch.stack([torch.maximum(ends[:, 0], extremes[:, 0]), torch.minimum(ends[:, 1], extremes[:, 1])], 1)
    return torch.where(total > 0, ends, extremes)
