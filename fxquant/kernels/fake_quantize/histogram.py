"""``fxquant::histogram``: counts values in bins that widen without error. Schema, reference, shape function."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.checks import check_axis, check_dtype
from fxquant.kernels.library import define
from fxquant.kernels.quantize.affine import FLOATS

OP = "fxquant::histogram"

FEWEST_BINS, MOST_BINS = 16, 65536
_SMALLEST_EXPONENT = -126
_LARGEST = torch.finfo(torch.float32).max


class Window(NamedTuple):
    """Which bins are counted: those of index ``first <= j < first + bins``, each ``2**exponent`` real units wide.

    Index j >= 0 holds the x >= 0 with ``j * width <= x < (j + 1) * width``; index -1 - j the same magnitudes below 0.
    """

    exponent: Tensor
    """int64 [C] or []."""
    first: Tensor
    """int64 [C] or []."""

    @property
    def width(self) -> Tensor:
        """float64, in real units."""
        return _power_of_two(self.exponent)


def histogram(
    x: Tensor, counts: Tensor, low: Tensor, high: Tensor, axis: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Add the values of a tensor to a histogram.

    Where the bins lie follows from the range: see ``window_of(low, high, bins)``. Their width is a power of two, so a
    range that grows merges pairs of bins, and every value stays in the bin that it belongs to: the result depends on
    the values seen, not on their order, their batches or the number of threads.

    Args:
        x: float32, float64, float16 or bfloat16, any shape and strides. Rounded to float32; NaN and what is infinite
            then are left out.
        counts: int64 [bins], or [C, bins] with an ``axis``: what was counted before. 16 to 65536 bins.
        low: float32 [] or [C], the smallest value so far, in real units; inf if there was none.
        high: float32 [] or [C], the largest one; -inf if there was none.
        axis: The dimension whose every index has a histogram of its own; negative ones count from the end.

    Returns:
        ``(counts, low, high, nonfinite)``: new tensors like the arguments, and int64 [], how many values of ``x`` were
        left out.

    Raises:
        RuntimeError: dtype, shape, axis or device do not fit; the message names the argument.
    """
    return torch.ops.fxquant.histogram.default(x, counts, low, high, axis)


def window_of(low: Tensor, high: Tensor, bins: int) -> Window:
    """The narrowest bins of which ``bins`` reach from ``low`` to ``high``, and to 0, which every grid holds.

    Args:
        low: float32 [] or [C], in real units.
        high: float32 of that shape. Where it is below ``low``, nothing was seen, and the bins are the narrowest of all.
        bins: At least 16.
    """
    seen = low <= high
    above = torch.where(seen & (high > 0), high, 0.0).double().clamp(max=_LARGEST)
    below = torch.where(seen & (low < 0), -low, 0.0).double().clamp(max=_LARGEST)
    # 2^exponent > (above + below) / bins >= 2^(exponent - 1): narrower bins never reach that far.
    _, exponent = torch.frexp((above + below) / bins)
    exponent = torch.where(above + below > 0, exponent.long(), _SMALLEST_EXPONENT).clamp(min=_SMALLEST_EXPONENT)
    needed = _whole_widths(above, exponent) + _whole_widths(below, exponent) + 1 + (below > 0).long()
    exponent = exponent + (needed > bins).long()
    return Window(exponent, torch.where(below > 0, -1 - _whole_widths(below, exponent), 0))


def _power_of_two(exponent: Tensor) -> Tensor:
    """From the bits, since ``torch.ldexp`` computes a power, which a GPU rounds. float64."""
    return ((exponent + 1023) << 52).view(torch.float64)


def _whole_widths(x: Tensor, exponent: Tensor) -> Tensor:
    return (x * _power_of_two(-exponent)).long()


def merge_histograms(
    counts: Tensor, low: Tensor, high: Tensor, other_counts: Tensor, other_low: Tensor, other_high: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The histogram of all that two histograms of equally many bins have seen, exact to the count.

    Arguments and results are as for :func:`histogram`.
    """
    both_low, both_high = torch.minimum(low, other_low), torch.maximum(high, other_high)
    merged = torch.zeros_like(counts)
    _move(counts, low, high, merged, both_low, both_high)
    _move(other_counts, other_low, other_high, merged, both_low, both_high)
    return merged, both_low, both_high


def _move(counts: Tensor, low: Tensor, high: Tensor, to: Tensor, to_low: Tensor, to_high: Tensor) -> None:
    bins = counts.shape[-1]
    before, now = window_of(low, high, bins), window_of(to_low, to_high, bins)
    index = torch.arange(bins, device=counts.device) + before.first.unsqueeze(-1)
    # The shift of a negative index rounds down, which is how mirrored bins pair up.
    index = (index >> (now.exponent - before.exponent).clamp(0, 40).unsqueeze(-1)) - now.first.unsqueeze(-1)
    to.scatter_add_(-1, index.clamp(0, bins - 1), counts)


def reference(
    x: Tensor, counts: Tensor, low: Tensor, high: Tensor, axis: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same in pure torch, on any device; it waits for a GPU nowhere."""
    axis = _check(x, counts, low, high, axis)
    if x.numel() == 0:
        return counts.clone(), low.clone(), high.clone(), counts.new_zeros(())
    values = (x if axis is None else x.movedim(axis, 0)).float()
    values = values.reshape(*low.shape, -1)
    bins, finite = counts.shape[-1], values.isfinite()
    # 0.0 is added for the sake of -0.0.
    seen_low = torch.where(finite, values, torch.inf).amin(-1) + 0.0
    seen_high = torch.where(finite, values, -torch.inf).amax(-1) + 0.0
    window = window_of(seen_low, seen_high, bins)
    inverse = _power_of_two(-window.exponent).float()
    whole = (torch.where(finite, values, 0.0).abs() * inverse.unsqueeze(-1)).long()
    index = torch.where(values < 0, ~whole, whole) - window.first.unsqueeze(-1)
    seen = torch.zeros_like(counts).scatter_add_(-1, index.clamp(0, bins - 1), finite.long())
    return *merge_histograms(counts, low, high, seen, seen_low, seen_high), (~finite).sum()


def _check(x: Tensor, counts: Tensor, low: Tensor, high: Tensor, axis: int | None) -> int | None:
    check_dtype(OP, "x", x, FLOATS)
    if axis is not None:
        axis = check_axis(OP, axis, x.dim())
    bins = counts.shape[-1] if counts.dim() else 0
    if not FEWEST_BINS <= bins <= MOST_BINS:
        expected = f"{FEWEST_BINS} to {MOST_BINS}"
        raise KernelError(f"{OP}: counts has the wrong number of bins", got=bins, expected=expected)
    check_dtype(OP, "counts", counts, (torch.int64,))
    check_dtype(OP, "low", low, (torch.float32,))
    check_dtype(OP, "high", high, (torch.float32,))
    rows = [] if axis is None else [x.shape[axis]]
    for name, state, shape in (("counts", counts, [*rows, bins]), ("low", low, rows), ("high", high, rows)):
        if list(state.shape) != shape:
            raise KernelError(f"{OP}: {name} has the wrong shape", got=list(state.shape), expected=shape)
    return axis


def _fake(
    x: Tensor, counts: Tensor, low: Tensor, high: Tensor, axis: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check(x, counts, low, high, axis)
    like = torch.contiguous_format
    new_counts, new_low, new_high = (torch.empty_like(each, memory_format=like) for each in (counts, low, high))
    return new_counts, new_low, new_high, counts.new_empty(())


define(
    "histogram(Tensor x, Tensor counts, Tensor low, Tensor high, int? axis=None) -> (Tensor, Tensor, Tensor, Tensor)",
    reference=reference,
    fake=_fake,
)
