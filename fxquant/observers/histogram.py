"""Counts values in bins, and chooses the range that costs least: clips what is rare, if that pays."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import InputError, SpecError
from fxquant.kernels.fake_quantize.histogram import FEWEST_BINS, MOST_BINS, histogram, merge_histograms, window_of
from fxquant.observers.base import refuse_to_trace
from fxquant.observers.bins import Bins, least
from fxquant.observers.qparams import SMALLEST_SCALE, choose_qparams
from fxquant.observers.range_observer import RangeObserver
from fxquant.observers.ranges import split_groups
from fxquant.observers.scheme import make_scheme
from fxquant.plan.spec import QParams, QScheme, check_number

_PER_OCTAVE = 6
"""Range ends tried while the order of magnitude is looked for; then the best is refined."""
_REFINEMENTS = (0.2, 0.06, 0.02)
"""How far the ends then move, as a part of themselves, in three steps in each direction."""

_ROWS = ("counts", "min_val", "max_val")

_WORTH_CLIPPING = 0.02
"""Part of the error that must be saved."""


class _CachedRange:
    """The range that a search found, cached with the statistics and settings it was found for."""

    def __init__(self, observer: "HistogramObserver", low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high
        self._settings = _settings(observer)
        self._seen = [buffer.detach().clone() for buffer in _seen(observer)]

    def holds_for(self, observer: "HistogramObserver") -> bool:
        """Tell whether the observer has seen nothing else, and would search as it did."""
        seen = _seen(observer)
        same = (a.device == b.device and torch.equal(a, b) for a, b in zip(self._seen, seen, strict=True))
        return self._settings == _settings(observer) and all(same)


def _settings(observer: "HistogramObserver") -> dict[str, object]:
    """Return also those of derived classes: ``percentile``, ``candidates``, ..."""
    return {name: value for name, value in vars(observer).items() if isinstance(value, (int, float, str, QScheme))}


def _seen(observer: "HistogramObserver") -> tuple[Tensor, ...]:
    return observer.counts, observer.min_val, observer.max_val, observer.eps


class HistogramObserver(RangeObserver):
    """Chooses the range whose mean squared quantization error is the smallest, by a histogram of all values seen.

    Memory is fixed: ``bins`` counters per scale. Bins are a power of two wide, between ``range / bins`` and twice that,
    and range and bins always reach to 0. A growing range merges neighbours, so that nothing is ever resampled, and what
    comes out depends neither on the order of the values nor on how they were cut into batches. See
    ``fxquant.kernels.fake_quantize.histogram``.

    Buffers: those of ``RangeObserver``, and ``counts`` int64 [bins], [C, bins] per channel, [C, groups, bins] per
    group.

    Args:
        bins: Number of counters, 16 to 65536.
        dtype, qscheme, reduce_range, quant_min, quant_max, factory_kwargs, eps, is_dynamic, bits, scheme: As for
            ``MinMaxObserver``; ``scheme`` may be per channel.
        ch_axis: Dimension with one histogram and one scale per index; negative counts from the end. None: one for
            the whole tensor.
        group_size: With ``ch_axis``, one scale per run of this many values along the dimension after it.
        power: What the distance between a value and its quantized form is raised to before it is averaged, 1 to 8; 2
            is the mean squared error, larger ones clip less.

    Raises:
        SpecError: such qparams cannot exist; ``bins`` or ``power`` is out of range; ``is_dynamic``.

    Source:
        The aim is that of torch.ao ``HistogramObserver``; the error of a bin is its exact integral, for all ranges
        that are tried, where torch.ao takes every bin to be rounded evenly and moves the ends greedily.

    Example:
        >>> observer = HistogramObserver(bits=4)
        >>> _ = observer(torch.linspace(0.0, 1.0, 100_000)), observer(torch.tensor([3.0]))
        >>> low, high = observer.chosen_range()
        >>> observer.max_val.item(), round(high.item(), 1)
        (3.0, 1.0)
    """

    counts: Tensor

    def __init__(
        self,
        bins: int = 2048,
        dtype: torch.dtype | None = None,
        qscheme: object | None = None,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        factory_kwargs: dict[str, Any] | None = None,
        eps: float = SMALLEST_SCALE,
        is_dynamic: bool = False,
        *,
        ch_axis: int | None = None,
        bits: int | None = None,
        group_size: int | None = None,
        scheme: QScheme | None = None,
        power: float = 2.0,
    ) -> None:
        qparams = make_scheme(
            dtype=dtype,
            qscheme=qscheme,
            reduce_range=reduce_range,
            quant_min=quant_min,
            quant_max=quant_max,
            ch_axis=getattr(scheme, "axis", None) if ch_axis is None else ch_axis,
            bits=bits,
            group_size=group_size,
            scheme=scheme,
        )
        check_number("bins", bins, lambda count: FEWEST_BINS <= count <= MOST_BINS, f"{FEWEST_BINS} to {MOST_BINS}")
        check_number("power", power, lambda exponent: 1 <= exponent <= 8, "1 to 8")
        if is_dynamic:
            raise SpecError(
                f"{type(self).__name__} cannot measure ranges at run time",
                got="is_dynamic=True",
                expected="MinMaxObserver or PlaceholderObserver: a call knows its smallest and its largest value",
            )
        super().__init__(
            qparams,
            dtype=dtype,
            reduce_range=reduce_range,
            eps=eps,
            is_dynamic=is_dynamic,
            factory_kwargs=factory_kwargs,
        )
        self.bins = bins
        self.power = power
        self.ch_axis = qparams.axis
        empty = torch.zeros((*self.min_val.shape, bins), dtype=torch.int64, device=self.min_val.device)
        self.register_buffer("counts", empty)
        self._chosen: _CachedRange | None = None

    def update(self, x: Tensor) -> None:
        x = x.to(self.min_val.device, x.dtype if x.is_floating_point() else torch.float32)
        shape: tuple[int, ...] = ()
        if self.scheme.axis is not None:
            x, kept = split_groups(x, self.scheme)
            shape = tuple(x.shape[dim] for dim in kept)
            x = x.flatten(kept[0], kept[-1])
        self.start(shape, x)
        counts, low, high, nonfinite = histogram(x, *self._rows(), kept[0] if shape else None)
        self._store(counts, low, high)
        self.nonfinite_count.add_(nonfinite)

    def absorb(self, other: "HistogramObserver") -> None:
        """Take into account all that another observer has seen, as if this one had seen it.

        Raises:
            InputError: it has another number of bins or channels.
        """
        if other.min_val.numel() == 0:
            return
        if other.bins != self.bins:
            raise InputError("histograms of different sizes cannot be merged", got=other.bins, expected=self.bins)
        self.start(tuple(other.min_val.shape), other.min_val)
        others = (each.to(self.min_val.device) for each in other._rows())
        self._store(*merge_histograms(*self._rows(), *others))
        self.nonfinite_count += other.nonfinite_count.to(self.nonfinite_count.device)

    def pool_ranges(self, seen: Sequence[Mapping[str, Tensor]]) -> None:
        """Add the counts, which is exact: as if this observer had seen all of the values."""
        rows = [[state[name] for name in _ROWS] for state in seen]
        total = rows[0]
        for other in rows[1:]:
            total = list(merge_histograms(*total, *other))
        self._store(*total)
        if self._pooled and self._pooled["counts"].shape == self.counts.shape:
            before = (self._pooled[name].to(self.counts.device) for name in _ROWS)
            twice, *_ = merge_histograms(torch.zeros_like(self.counts), self.min_val, self.max_val, *before)
            self.counts -= twice * (len(seen) - 1)

    def chosen_range(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the range that is going to be quantized: float32, of the shape of ``min_val``.

        Raises:
            CalibrationError: nothing was seen that qparams could be chosen from.
        """
        refuse_to_trace("the range is searched for in Python", "disable_observer() once the module is calibrated")
        super().qparams()  # raises
        if self.min_val.is_meta:
            return torch.empty_like(self.min_val), torch.empty_like(self.max_val)
        if self._chosen is None or not self._chosen.holds_for(self):
            self._chosen = _CachedRange(self, *self._choose())
        return self._chosen.low.to(self.min_val.device, copy=True), self._chosen.high.to(self.min_val.device, copy=True)

    def _choose(self) -> tuple[Tensor, Tensor]:
        low, high = self.choose(Bins.of(*self._rows()))
        return low.float().reshape(self.min_val.shape), high.float().reshape(self.min_val.shape)

    def choose(self, bins: Bins) -> tuple[Tensor, Tensor]:
        """Return the ends of the range of each histogram, float [...]; what a derived class writes anew."""
        return least_error(bins, self.scheme, self.eps.cpu(), self.power)

    def qparams(self) -> QParams:
        return choose_qparams(*self.chosen_range(), self.scheme, self.eps)

    def reset_min_max_vals(self) -> None:
        super().reset_min_max_vals()
        self.counts.resize_((*self.min_val.shape, self.bins)).zero_()

    def start(self, shape: tuple[int, ...], x: Tensor) -> None:
        first = self.min_val.numel() == 0
        super().start(shape, x)
        if first:
            self.counts.resize_((*shape, self.bins)).zero_()

    def _rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the state as the kernel has it: groups are channels there."""
        if self.scheme.axis is None:
            return self.counts, self.min_val, self.max_val
        return self.counts.view(-1, self.bins), self.min_val.view(-1), self.max_val.view(-1)

    def _store(self, counts: Tensor, low: Tensor, high: Tensor) -> None:
        for buffer, values in ((self.counts, counts), (self.min_val, low), (self.max_val, high)):
            buffer.copy_(values.view(buffer.shape))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        theirs = state_dict.pop(prefix + "histogram", None)
        if isinstance(theirs, Tensor) and self.scheme.axis is None:
            low, high = (state_dict[prefix + name].float().reshape(()) for name in ("min_val", "max_val"))
            state_dict[prefix + "counts"] = spread(theirs, low, high, self.bins)
        saved = state_dict.get(prefix + "counts")
        if isinstance(saved, Tensor) and self.scheme.axis is not None and saved.shape[-1:] == (self.bins,):
            self.counts.resize_(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def choose_together(observers: Iterable[object]) -> None:
    """Search for the ranges of several observers as for those of channels; each then has its own at hand.

    A search is a few hundred small operators, most of whose time is that of calling them. Those of derived classes
    choose in ways of their own, and those of channels have many histograms already.

    Args:
        observers: Any; what is not a plain ``HistogramObserver`` of whole tensors that has seen values is left out.
    """
    alike: dict[tuple[object, ...], list[HistogramObserver]] = {}
    for observer in observers:
        if type(observer) is not HistogramObserver or observer.scheme.axis is not None or observer.min_val.is_meta:
            continue
        if observer.min_val.dim() or observer.eps.numel() != 1:  # buffers of other shapes, written by hand
            continue
        seen = -torch.inf < float(observer.min_val) <= float(observer.max_val) < torch.inf
        if seen and (observer._chosen is None or not observer._chosen.holds_for(observer)):
            key = observer.scheme, tuple(observer.counts.shape), observer.power, float(observer.eps)
            alike.setdefault(key, []).append(observer)
    for group in alike.values():
        rows = (torch.stack([getattr(each, name).cpu() for each in group]) for name in _ROWS)
        low, high = group[0].choose(Bins.of(*rows))
        for each, *ends in zip(group, low.float(), high.float(), strict=True):
            each._chosen = _CachedRange(each, *ends)


def spread(weights: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Bring a histogram of equal bins from ``low`` to ``high``, as torch.ao has it, into our bins: each goes to
    that of its middle. int64 [bins]."""
    window = window_of(low, high, bins)
    share = (torch.arange(weights.numel(), dtype=torch.float64, device=weights.device) + 0.5) / weights.numel()
    middles = low.double() + share * (high.double() - low.double())
    widths = torch.floor(middles.abs().nan_to_num() / window.width).long()  # NaN where nothing was seen
    index = torch.where(middles < 0, -1 - widths, widths) - window.first
    counts = torch.zeros(bins, dtype=torch.int64, device=weights.device)
    return counts.scatter_add_(0, index.clamp(0, bins - 1), weights.round().long())


def least_error(bins: Bins, scheme: QScheme, eps: Tensor, power: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return the range with the smallest mean error, raised to ``power``, among hundreds of every order of magnitude.

    First both ends shrink together, then each alone, twice; then both move a little around the best so far. The range
    of all values stays unless another is clearly better: within a bin, where values may all be the same, nothing is
    known, and what a few values more or less decide is no better on other data.
    """
    best = _search(bins, scheme, eps, power)
    low, high = (torch.stack(ends, -1).float() for ends in ((bins.low, best[0]), (bins.high, best[1])))
    whole, clipped = bins.errors(low, high, scheme, eps, power).unbind(-1)
    better = (clipped < whole * (1 - _WORTH_CLIPPING)).long().unsqueeze(-1)
    return low.gather(-1, better).squeeze(-1), high.gather(-1, better).squeeze(-1)


def _search(bins: Bins, scheme: QScheme, eps: Tensor, power: float) -> tuple[Tensor, Tensor]:
    if scheme.symmetric:
        reach = _magnitudes(torch.maximum(-bins.low, bins.high), bins)
        best = cheapest(bins, scheme, eps, -reach, reach, power)
        for distance in _REFINEMENTS:
            reach = _around(torch.maximum(-best[0], best[1]), distance)
            best = cheapest(bins, scheme, eps, -reach, reach, power)
        return best
    lows, highs = -_magnitudes(-bins.low, bins), _magnitudes(bins.high, bins)
    together = torch.arange(max(lows.shape[-1], highs.shape[-1]))
    lows, highs = (ends[..., together.clamp(max=ends.shape[-1] - 1)] for ends in (lows, highs))
    best = cheapest(bins, scheme, eps, lows, highs, power)
    for _ in range(2):
        best = cheapest(bins, scheme, eps, lows, best[1].unsqueeze(-1).expand_as(lows), power)
        best = cheapest(bins, scheme, eps, best[0].unsqueeze(-1).expand_as(highs), highs, power)
    for distance in _REFINEMENTS:
        lows, highs = torch.broadcast_tensors(
            _around(best[0], distance).unsqueeze(-1), _around(best[1], distance).unsqueeze(-2)
        )
        best = cheapest(bins, scheme, eps, lows.flatten(-2), highs.flatten(-2), power)
    return best


def cheapest(
    bins: Bins, scheme: QScheme, eps: Tensor, low: Tensor, high: Tensor, power: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Return the one of several ranges, wide ones first, with the ``least`` error, each cut to the values seen.

    Args:
        bins: Histograms, each of which has ranges of its own.
        scheme, eps, power: See ``Bins.errors``.
        low, high: float [..., K].

    Returns:
        Its ends, float32 [...].
    """
    low, high = bins.within(low, high)
    index = least(bins.errors(low, high, scheme, eps, power)).unsqueeze(-1)
    return low.gather(-1, index).squeeze(-1), high.gather(-1, index).squeeze(-1)


def _magnitudes(end: Tensor, bins: Bins) -> Tensor:
    """Distances of one end of the range from 0: that of the values seen, then ever shorter ones, and 0; float64.

    Ends at 0, or beyond it, stay as they are. Of histograms with fewer distances than others, the last is repeated.
    """
    relations = (end.clamp(min=0) / bins.width).flatten().tolist()
    octaves = [max(0.0, math.log2(relation)) if relation else 0.0 for relation in relations]
    steps = torch.tensor([int(count * _PER_OCTAVE) for count in octaves]).view(*end.shape, 1)
    index = torch.arange(int(steps.max()) + 2, dtype=torch.float64)
    shrunk = torch.where(index <= steps, end.unsqueeze(-1) * 2.0 ** (-index / _PER_OCTAVE), 0.0)
    return torch.where(end.unsqueeze(-1) > 0, shrunk, end.unsqueeze(-1))


def _around(end: Tensor, distance: float) -> Tensor:
    """float64 [..., 7]."""
    return end.double().unsqueeze(-1) * (1 + distance / 3 * torch.arange(3, -4, -1, dtype=torch.float64))
