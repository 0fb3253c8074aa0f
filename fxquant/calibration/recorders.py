"""Records what a batch shows beside the observers, and later shows it to them in the order of the batches.

An observer that a record was replayed to has the bits that it would have if it had seen the batches itself: a recorder
measures with the observer's own code, and the replay merges with it. Counts of histograms are integers, which add up in
any order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.calibration.batch_records import BatchRecords, Histogram, stacked
from fxquant.calibration.channel_extremes import ChannelExtremes, Extremes
from fxquant.errors import InputError
from fxquant.fake_quantize.base import FakeQuantizeBase, observer_in
from fxquant.kernels.fake_quantize.histogram import merge_histograms
from fxquant.observers.base import ObserverBase
from fxquant.observers.channel_means import ChannelMeans
from fxquant.observers.fixed import FixedQParamsObserver, NoopObserver, PlaceholderObserver
from fxquant.observers.histogram import HistogramObserver
from fxquant.observers.moving_average import MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver
from fxquant.observers.range_observer import RangeObserver

_MERGES = {kind.merge for kind in (RangeObserver, MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver)}
_NOTHING = (FixedQParamsObserver, PlaceholderObserver, NoopObserver)


class RangeRecorder(nn.Module):
    """Records the range of each batch, with a fresh copy of an observer.

    Args:
        observer: The observer that the ranges are for; it stays as it is.
    """

    def __init__(self, observer: RangeObserver) -> None:
        super().__init__()
        self._copy = copy.deepcopy(observer)
        self._seen = False

    def forward(self, x: Tensor) -> Tensor:
        self._copy.reset_min_max_vals()
        self._seen = True
        self._copy(x)
        return x

    def keep(self, records: BatchRecords, name: str, batch: int, stretch: int) -> None:
        """Write down what the last batch has shown."""
        fields = (self._copy.min_val, self._copy.max_val, self._copy.nonfinite_count)
        if self._seen:
            records.add(name, batch, tuple(each.to("cpu", copy=True) for each in fields))
        self.forget()

    def forget(self) -> None:
        """Leave out the last batch: it has failed."""
        self._seen = False


class HistogramRecorder(RangeRecorder):
    """Counts the values of each batch in a histogram of its own."""

    def keep(self, records: BatchRecords, name: str, batch: int, stretch: int) -> None:
        if self._seen:
            shape = torch.tensor(self._copy.min_val.shape, dtype=torch.int64)
            records.add(name, batch, (self._copy.nonfinite_count.to("cpu", copy=True), shape))
            if self._copy.min_val.numel():
                observer: Any = self._copy
                counts, low, high = (each.to("cpu", copy=True) for each in rows_of(observer))
                records.count(stretch, name, (counts, low, high))
        self.forget()


class MeansRecorder(ChannelMeans):
    """Records the sum of each channel of a batch. It is one of ``ChannelMeans``, which are shown other values."""

    def __init__(self, means: ChannelMeans) -> None:
        super().__init__(means.axis)

    def forward(self, x: Tensor) -> Tensor:
        self.forget()
        return super().forward(x)

    def keep(self, records: BatchRecords, name: str, batch: int, stretch: int) -> None:
        """Write down what the last batch has shown."""
        if self.total.numel():
            records.add(name, batch, (self.total.to("cpu", copy=True), self.count.to("cpu", copy=True)))
        self.forget()

    def forget(self) -> None:
        """Leave out the last batch: it has failed."""
        self.total = self.total.new_zeros(0)
        self.count = self.count.new_zeros(())


class ChannelRecorder(nn.Module):
    """Records the extremes of each channel of a batch, or of a value that is joined.

    Args:
        extremes: What they are for; it stays as it is.
    """

    def __init__(self, extremes: ChannelExtremes | Extremes) -> None:
        super().__init__()
        self._of: list[ChannelExtremes | Extremes] = [extremes]  # in a list, so that it is no child
        self._seen: tuple[Tensor, ...] | None = None

    def forward(self, x: Tensor) -> Tensor:
        self._seen = self._of[0].look_alone(x.detach())
        return x

    def keep(self, records: BatchRecords, name: str, batch: int, stretch: int) -> None:
        """Write down what the last batch has shown."""
        if self._seen is not None:
            records.add(name, batch, tuple(each.to("cpu", copy=True) for each in self._seen))
        self.forget()

    def forget(self) -> None:
        """Leave out the last batch: it has failed."""
        self._seen = None


def recorder_of(module: nn.Module, name: str) -> nn.Module | None:
    """Return a recorder for an observer, or for a fake-quantize module around one; None for one that measures nothing.

    Raises:
        InputError: it is of a class of the user's, whose way to take a batch into account is not known.
    """
    observer = observer_in(module)
    kind: Any = type(observer)
    if isinstance(module, FakeQuantizeBase) and not module.is_on("observer_enabled"):
        return None
    if isinstance(observer, ChannelMeans):
        return MeansRecorder(observer)
    if isinstance(observer, _NOTHING) and kind.update in {each.update for each in _NOTHING}:
        return None
    if isinstance(observer, RangeObserver) and kind.forward is ObserverBase.forward:
        if kind.update is HistogramObserver.update:
            return HistogramRecorder(observer)
        if kind.update is RangeObserver.update and kind.merge in _MERGES:
            return RangeRecorder(observer)
    raise InputError(
        f"{kind.__name__} cannot measure in several ranks that calibrate together",
        at=name,
        got=f"{kind.__name__}, which has an update or a merge of its own",
        expected="an observer of fxquant, or one that inherits update and merge",
        hint="each rank observes its part of the data, and synchronize_observers pools, outside of share_work",
    )


def rows_of(observer: HistogramObserver) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts, int64 [rows, bins], and smallest and largest values, float32 [rows]."""
    return observer.counts.view(-1, observer.bins), observer.min_val.view(-1), observer.max_val.view(-1)


def replayed(records: BatchRecords, observers: Mapping[str, Any]) -> Callable[[int], None]:
    """Return a function that shows one batch of the record to all observers but their counts, which come apart."""
    inside = {name: observer_in(made) for name, made in observers.items()}

    def show(batch: int) -> None:
        for name, observer in inside.items():
            fields = records.values.get(name, {}).get(batch)
            if fields is None:
                continue
            if isinstance(observer, ChannelMeans):
                total, count = (each.to(observer.count.device) for each in fields)
                observer.merge(total, count)
            elif isinstance(observer, HistogramObserver):
                observer.nonfinite_count += fields[0].to(observer.nonfinite_count.device)
            else:
                _merge_range(observer, *fields)

    return show


def _merge_range(observer: RangeObserver, low: Tensor, high: Tensor, nonfinite: Tensor) -> None:
    low, high = low.to(observer.min_val.device), high.to(observer.min_val.device)
    if low.numel():
        observer.start(tuple(low.shape), low)
        observer.merge(low, high)
    observer.nonfinite_count += nonfinite.to(observer.nonfinite_count.device)


def add_counts(given: Sequence[tuple[HistogramObserver, Histogram, tuple[int, ...]]]) -> None:
    """Add the counts of a stretch of batches to those of observers.

    Histograms of equally many bins are moved into their new bins all at once: one after the other they took a third of
    a second for sixteen batches of ResNet-18, in each rank.

    Args:
        given: Observers, each once, with counts to add and the shape of ``min_val`` for so many rows.
    """
    alike: dict[object, list[tuple[HistogramObserver, Histogram]]] = {}
    for observer, counted, shape in given:
        device = observer.min_val.device
        observer.start(shape, counted[1])
        moved = tuple(each.to(device) for each in counted)
        alike.setdefault((observer.bins, device), []).append((observer, (moved[0], moved[1], moved[2])))
    for group in alike.values():
        before = stacked(rows_of(observer) for observer, _ in group)
        after = merge_histograms(*before, *stacked(counted for _, counted in group))
        rows = [len(counted[1]) for _, counted in group]
        for (observer, _), *parts in zip(group, *(each.split(rows) for each in after), strict=True):
            for buffer, values in zip((observer.counts, observer.min_val, observer.max_val), parts, strict=True):
                buffer.copy_(values.view(buffer.shape))
