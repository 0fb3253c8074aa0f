"""``fxquant::histogram``: counts values in bins that widen without error. Schema, reference, shape function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import Call, define_operator
from fxquant.kernels.checks import check_axis, check_dtype
from fxquant.kernels.quantize.affine import FLOATS

FEWEST_BINS, MOST_BINS = 16, 65536
_SMALLEST_EXPONENT = -126
_LARGEST = torch.finfo(torch.float32).max


class Window(NamedTuple):
    """Says which bins are counted: those of index ``first <= j < first + bins``, each ``2**exponent`` wide.

    Index j >= 0 holds the x >= 0 with ``j * width <= x < (j + 1) * width``; index -1 - j the same magnitudes below 0.
    """

    exponent: Tensor
    """int64 [C] or []."""
    first: Tensor
    """int64 [C] or []."""

    @property
    def width(self) -> Tensor:
        """float64."""
        return _power_of_two(self.exponent)


def window_of(low: Tensor, high: Tensor, bins: int) -> Window:
    """Return the narrowest bins of which ``bins`` reach from ``low`` to ``high``, and to 0.

    Args:
        low: float32 [] or [C].
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
    """Build a float64 from its bits, since ``torch.ldexp`` computes a power, which a GPU rounds."""
    return ((exponent + 1023) << 52).view(torch.float64)


def _whole_widths(x: Tensor, exponent: Tensor) -> Tensor:
    return (x * _power_of_two(-exponent)).long()


def merge_histograms(
    counts: Tensor, low: Tensor, high: Tensor, other_counts: Tensor, other_low: Tensor, other_high: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the histogram of all that two histograms of equally many bins have seen, exact to the count.

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


@dataclass(eq=False, repr=False)
class HistogramCall(Call[tuple[Tensor, Tensor, Tensor, Tensor]]):
    """Add the values of a tensor to a histogram.

    Where the bins lie follows from the range: see ``window_of(low, high, bins)``. Their width is a power of two, so a
    range that grows merges pairs of bins, and every value stays in the bin that it belongs to: the result depends on
    the values seen, not on their order, their batches or the number of threads.

    Returns:
        ``(counts, low, high, nonfinite)``: new tensors like the arguments, and int64 [], how many values of ``x`` were
        left out.

    Raises:
        RuntimeError: dtype, shape, axis or device do not fit; the message names the argument.
    """

    op: ClassVar[str] = "fxquant::histogram"
    results: ClassVar[str] = "(Tensor, Tensor, Tensor, Tensor)"

    x: Tensor
    """float32, float64, float16 or bfloat16, any shape and strides. Rounded to float32; NaN and what is infinite then
    are left out."""
    counts: Tensor
    """int64 [bins], or [C, bins] with an ``axis``: what was counted before. 16 to 65536 bins."""
    low: Tensor
    """float32 [] or [C], the smallest value so far; inf if there was none."""
    high: Tensor
    """float32 [] or [C], the largest one; -inf if there was none."""
    axis: int | None = None
    """The dimension whose every index has a histogram of its own; negative ones count from the end."""

    def check(self) -> int | None:
        """Check the arguments, and return the axis counted from the first dimension."""
        op, x, counts = self.op, self.x, self.counts
        check_dtype(op, "x", x, FLOATS)
        axis = None if self.axis is None else check_axis(op, self.axis, x.dim())
        bins = counts.shape[-1] if counts.dim() else 0
        if not FEWEST_BINS <= bins <= MOST_BINS:
            expected = f"{FEWEST_BINS} to {MOST_BINS}"
            raise KernelError(f"{op}: counts has the wrong number of bins", got=bins, expected=expected)
        rows = [] if axis is None else [x.shape[axis]]
        for name, state, dtype, shape in (
            ("counts", counts, torch.int64, [*rows, bins]),
            ("low", self.low, torch.float32, rows),
            ("high", self.high, torch.float32, rows),
        ):
            check_dtype(op, name, state, (dtype,))
            if list(state.shape) != shape:
                raise KernelError(f"{op}: {name} has the wrong shape", got=list(state.shape), expected=shape)
        return axis

    def empty_result(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        self.check()
        like = torch.contiguous_format
        counts, low, high = (torch.empty_like(each, memory_format=like) for each in (self.counts, self.low, self.high))
        return counts, low, high, self.counts.new_empty(())

    def reference(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the result in pure torch, on any device; nothing waits for a GPU."""
        axis, x, counts, low, high = self.check(), self.x, self.counts, self.low, self.high
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


histogram, reference = define_operator(HistogramCall)
