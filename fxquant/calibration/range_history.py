"""Keeps the range of each observer against the number of batches, in a table of fixed size, to tell if it is stable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import CalibrationError
from fxquant.kernels.fake_quantize.histogram import window_of
from fxquant.observers.histogram import HistogramObserver
from fxquant.observers.qparams import quantization_range

POINTS = 64
"""Rows of the table. When it is full, every second one goes, and from then on they are written half as often."""
SPACING = 8
"""The next row comes when an eighth more batches have been seen: the first sixteen have a row each."""
FEWEST_BATCHES = 8
"""Fewer say nothing about whether ranges have settled."""
TOLERANCE = 0.05
"""Part of its width by which an end may still move: a step that much too wide costs less than half a decibel."""


class RangeHistory(nn.Module):
    """Writes down, batch by batch, where the values of every observer end, and which batch brought NaN and infinities.

    A range has settled if it did not move any more in the second half of the batches: no end by more than
    ``TOLERANCE`` of the width. The size is fixed: ``POINTS`` rows, whatever the number of batches.

    Buffers: ``ends`` float32 [POINTS, observers, 2], float values; ``at`` int64 [POINTS], after how many batches a row
    was written, 0 where there is none yet; ``batches`` int64 [], how many there were; ``pooled`` int64 [], how many of
    these every process knows of; ``stride`` int64 [], 1, and twice as much each time the table was full;
    ``first_nonfinite`` int64 [observers], the batch that first brought values that are not finite, counted from 0, and
    -1 if none did.

    Args:
        names: Of the observers, in order.
    """

    ends: Tensor
    at: Tensor
    batches: Tensor
    pooled: Tensor
    stride: Tensor
    first_nonfinite: Tensor

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        count = len(self.names)
        self.register_buffer("ends", torch.zeros(POINTS, count, 2))
        self.register_buffer("at", torch.zeros(POINTS, dtype=torch.int64))
        for name, value in (("batches", 0), ("pooled", 0), ("stride", 1)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.int64))
        self.register_buffer("first_nonfinite", torch.full((count,), -1, dtype=torch.int64))

    def update(self, observers: Sequence[Any]) -> bool:
        """Take note of one more batch, which ``observers``, in the order of ``names``, have just seen.

        Returns:
            Whether a row was written.
        """
        self._note_nonfinite(observers)
        self.batches += 1
        rows = self._rows()
        last = int(self.at[rows - 1]) if rows else 0
        if int(self.batches) - last < int(self.stride) * max(1, last // SPACING):
            return False
        if rows == POINTS:
            rows = self._thin()
        self._write(rows, observers)
        return True

    def table(self, observers: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return the rows so far, and one for now, if the last one is older.

        Returns:
            After how many batches, int64 [rows]; and the ends, float32 [rows, observers, 2].
        """
        rows = self._rows()
        at, ends = self.at[:rows], self.ends[:rows]
        if rows and int(at[-1]) == int(self.batches):
            return at, ends
        return torch.cat([at, self.batches.reshape(1)]), torch.cat([ends, observed_range_of(observers)[None]])

    def stable_after(self, observers: Sequence[Any]) -> Tensor:
        """After how many batches each range came to stay; int64 [observers], 0 if nothing was seen."""
        at, ends = self.table(observers)
        now = ends[-1]
        width = now.clamp(max=0)[:, :1].neg() + now.clamp(min=0)[:, 1:]  # a quantization range always reaches to 0
        moved = ((ends - now).abs() > TOLERANCE * width).any(-1)
        moved_last = (moved * torch.arange(1, len(at) + 1).unsqueeze(1)).amax(0)
        return torch.where(now[:, 0] <= now[:, 1], at[moved_last], 0)

    def is_stable(self, observers: Sequence[Any]) -> Tensor:
        """bool [observers]: nothing has moved in the second half of at least ``FEWEST_BATCHES`` batches."""
        after = self.stable_after(observers)
        return (after > 0) & (2 * after <= self.batches) & (self.batches >= FEWEST_BATCHES)

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Take what several processes have written down, each of its part of the data, for what this one has.

        Args:
            states: The ``state_dict()`` of each, this one's among them, in any order. Rows are joined by their number,
                to the widest range. Batches that every process knew of before count once.
        """
        states = [{name: value.cpu() for name, value in state.items()} for state in states]
        shared = states[0]["pooled"]
        rows = [int((state["at"] > 0).sum()) for state in states]
        count = max(rows)
        if not count:
            return
        ats, lows, highs = [], [], []
        for state, own in zip(states, rows, strict=True):
            index = torch.arange(count).clamp(max=max(own - 1, 0))  # who has seen less stays at its last row
            ats.append(state["at"][index])
            ends = (
                state["ends"][index] if own else torch.tensor([torch.inf, -torch.inf]).expand(count, len(self.names), 2)
            )
            lows.append(ends[..., 0])
            highs.append(ends[..., 1])
        at = torch.stack(ats)
        known = torch.minimum(at.amin(0), shared)
        self.at[:count] = at.sum(0) - known * (len(states) - 1)
        self.ends[:count] = torch.stack([torch.stack(lows).amin(0), torch.stack(highs).amax(0)], -1)
        self.batches.copy_(torch.stack([state["batches"] for state in states]).sum() - shared * (len(states) - 1))
        self.stride.copy_(torch.stack([state["stride"] for state in states]).amax())
        self.pooled.copy_(self.batches)
        first = torch.stack([state["first_nonfinite"] for state in states])
        never = torch.iinfo(torch.int64).max
        first = torch.where(first < 0, never, first).amin(0)
        self.first_nonfinite.copy_(torch.where(first == never, -1, first))

    def _note_nonfinite(self, observers: Sequence[Any]) -> None:
        none = torch.zeros((), dtype=torch.int64)
        counts = [getattr(observer, "nonfinite_count", none) for observer in observers]
        met = torch.stack(counts).cpu() > 0 if counts else torch.zeros(0, dtype=torch.bool)
        self.first_nonfinite[met & (self.first_nonfinite < 0)] = self.batches

    def _rows(self) -> int:
        return int((self.at > 0).sum())

    def _thin(self) -> int:
        kept = POINTS // 2
        self.ends[:kept] = self.ends[1::2].clone()
        self.at[:kept] = self.at[1::2].clone()
        self.at[kept:] = 0
        self.stride *= 2
        return kept

    def _write(self, row: int, observers: Sequence[Any]) -> None:
        self.ends[row] = observed_range_of(observers)
        self.at[row] = self.batches

    def _apply(self, fn: Any, recurse: bool = True) -> RangeHistory:
        """It stays on the CPU, in its own dtypes: what a GPU measured comes here."""
        del fn, recurse
        return self


SHARE = 1e-4
"""Of the values a histogram has counted: how many may lie beyond each end. A few outliers change nothing."""


def observed_range_of(observers: Sequence[Any]) -> Tensor:
    """Lower and upper end of what each observer has seen.

    Of a histogram for whole tensors, the ends of the bins beyond which lie at most ``SHARE`` of all values; of other
    observers the smallest and the largest value, of all channels.

    Args:
        observers: Of one that keeps no ``min_val`` and ``max_val``, it is the range of the qparams that it computes.

    Returns:
        float32 [observers, 2] on the CPU, float values; inf and -inf where nothing was seen.
    """
    ends = [_extremes(observer) for observer in observers]
    if len({each.device for each in ends}) > 1:  # what has seen nothing answers on the CPU
        ends = [each.cpu() for each in ends]
    found = torch.stack(ends).cpu() if ends else torch.empty(0, 2)
    by_bins: dict[int, list[int]] = {}
    for index, observer in enumerate(observers):
        if isinstance(observer, HistogramObserver) and observer.scheme.axis is None:
            by_bins.setdefault(observer.bins, []).append(index)
    for rows in by_bins.values():
        counts = torch.stack([observers[row].counts for row in rows]).cpu()
        found[rows] = _quantiles(counts, found[rows])
    return found


def extremes_of(observer: Any) -> tuple[Tensor, Tensor] | None:
    """Return ``min_val`` and ``max_val`` of an observer, or None if it keeps none."""
    low, high = getattr(observer, "min_val", None), getattr(observer, "max_val", None)
    return (low, high) if isinstance(low, Tensor) and isinstance(high, Tensor) else None


def _extremes(observer: Any) -> Tensor:
    extremes = extremes_of(observer)
    if extremes is None:
        return _range_of_qparams(observer)
    low, high = extremes
    if low.numel() == 0:
        return torch.tensor([torch.inf, -torch.inf])
    return torch.stack([low, high] if low.dim() == 0 else [low.amin(), high.amax()])


def _range_of_qparams(observer: Any) -> Tensor:
    ends = (torch.inf, -torch.inf)
    if hasattr(observer, "qparams"):
        with suppress(CalibrationError):  # it has seen nothing yet
            ends = quantization_range(observer.qparams())
    return torch.tensor(ends, dtype=torch.float32)


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
