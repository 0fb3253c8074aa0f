"""``HistogramObserver`` as torch.ao has it: equal bins over the range seen, and a greedy search from both ends."""

from typing import Any, Final

import torch
from torch import Tensor

from fxquant.compat.observer_classes import EPS, halves, on_device, require_per_tensor
from fxquant.compat.range_qparams import Range
from fxquant.errors import warn
from fxquant.observers.qparams import choose_qparams
from fxquant.observers.range_observer import RangeObserver
from fxquant.observers.scheme import make_scheme
from fxquant.plan.spec import QParams

_UPSAMPLE = 16
"""Parts of an old bin, of which each goes to the new bin that its middle lies in."""
_STEP: Final = 1e-5
"""How much of all values the search leaves out at a time."""


class HistogramObserver(Range, RangeObserver):
    """Chooses the range of small squared error by a histogram of all values, with the numbers of torch.ao.

    Buffers ``histogram`` float32 [bins], ``min_val`` and ``max_val`` float32 [].

    Args:
        bins: Number of counters, from 1 on.
        dtype, qscheme, reduce_range, quant_min, quant_max, factory_kwargs, eps, is_dynamic: As for ``MinMaxObserver``.

    Source:
        torch.ao.quantization.HistogramObserver, whose buffers and results these are.
    """

    histogram: Tensor

    def __init__(
        self,
        bins: int = 2048,
        dtype: torch.dtype = torch.quint8,
        qscheme: Any = torch.per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        factory_kwargs: dict[str, Any] | None = None,
        eps: float = EPS,
        is_dynamic: bool = False,
        **kwargs: Any,
    ) -> None:
        require_per_tensor(type(self), qscheme)
        reduce_range = halves(dtype, reduce_range, quant_min)
        if is_dynamic:
            raise NotImplementedError("HistogramObserver doesn't support dynamic quantization")
        scheme = make_scheme(
            dtype=dtype, qscheme=qscheme, reduce_range=reduce_range, quant_min=quant_min, quant_max=quant_max
        )
        super().__init__(
            scheme,
            dtype=dtype,
            reduce_range=reduce_range,
            eps=eps,
            is_dynamic=False,
            factory_kwargs=on_device(factory_kwargs),
        )
        self.qscheme = qscheme
        self.answer_as_torch(scheme, dtype, reduce_range, quant_min is not None)
        self.bins = bins
        self.dst_nbins = int(2 ** torch.iinfo(dtype).bits)
        self.upsample_rate = _UPSAMPLE
        self.register_buffer("histogram", torch.zeros(bins, device=self.min_val.device))

    def forward(self, x_orig: Tensor) -> Tensor:
        """Observe ``x_orig``, and return it. Infinite values are left out, with a warning."""
        if x_orig.numel() == 0:
            return x_orig
        x = x_orig.detach().to(self.min_val.device)
        if not x.is_floating_point() or x.dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        # Leave infinities out.
        low, high = torch.aminmax(x)
        if bool(low == -torch.inf) or bool(high == torch.inf):
            if not torch.jit.is_scripting():
                warn("torch.inf detected in input tensor, ignoring input")
            x = x[x.abs() != torch.inf]
            if x.numel() == 0:
                return x_orig
            low, high = torch.aminmax(x)
        # Count, in bins that reach as far as all values so far.
        before_low, before_high = self.min_val, self.max_val
        if bool(before_low > before_high):
            self.store(self.count(x, low, high), low, high)
            return x_orig
        new_low, new_high = torch.minimum(before_low, low).detach(), torch.maximum(before_high, high).detach()
        seen = self.count(x, new_low, new_high)
        if bool(new_low == before_low) and bool(new_high == before_high):
            self.store(self.histogram + seen, new_low, new_high)
        else:
            self.store(self.moved(before_low, before_high, new_low, new_high) + seen, new_low, new_high)
        return x_orig

    def update(self, x: Tensor) -> None:
        self.forward(x)

    def count(self, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Count values in equal bins between two ends."""
        return torch.histc(x, self.bins, min=float(low), max=float(high))

    def store(self, histogram: Tensor, low: Tensor, high: Tensor) -> None:
        """Copy a histogram and its ends into the buffers."""
        counts, smallest, largest = self.histogram, self.min_val, self.max_val
        counts.resize_(histogram.shape).copy_(histogram)
        smallest.resize_(low.shape).copy_(low)
        largest.resize_(high.shape).copy_(high)

    def moved(self, low: Tensor, high: Tensor, new_low: Tensor, new_high: Tensor) -> Tensor:
        """Return the counts so far in equal bins between other ends, which lie further out."""
        if bool(low == high):
            return self.count(low, new_low, new_high) * self.histogram.sum()
        fine = self.histogram.repeat_interleave(self.upsample_rate) / self.upsample_rate
        parts = self.bins * self.upsample_rate
        width = (high - low) / parts
        middles = torch.linspace(float(low), float(high), parts + 1, device=low.device)[:-1] + 0.5 * width
        edges = torch.linspace(float(new_low), float(new_high), self.bins + 1, device=low.device)
        home = (torch.bucketize(middles, edges, right=True) - 1).clamp(0, self.bins - 1)
        return torch.bincount(home, weights=fine, minlength=self.bins).to(self.histogram.dtype)

    def error(self, start: int, end: int) -> float:
        """Return the squared error where the bins from ``start`` to ``end`` are quantized, and others clipped."""
        width = (float(self.max_val) - float(self.min_val)) / self.bins
        step = width * (end - start + 1) / self.dst_nbins
        if step == 0.0:
            return 0.0
        begins = (torch.arange(self.bins, device=self.histogram.device) - start) * width
        ends = begins + width
        last = float(self.dst_nbins - 1)
        first_step = torch.clamp(torch.div(begins, step, rounding_mode="floor"), 0.0, last)
        last_step = torch.clamp(torch.div(ends, step, rounding_mode="floor"), 0.0, last)
        density = self.histogram / width
        half = torch.full_like(density, step / 2)
        left = begins - (first_step + 0.5) * step
        right = ends - (last_step * step + step / 2)
        # The sums are in torch.ao's order: the search stops where one of them grows, be it by a rounding.
        total = density * ((half * half * half - left * left * left) / 3)
        total = total + (last_step - first_step - 1) * (density * ((half * half * half + half * half * half) / 3))
        total = total + density * ((right * right * right + half * half * half) / 3)
        return float(total.sum())

    def search(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the range of least error that a greedy search from both ends finds."""
        width = (self.max_val - self.min_val) / self.bins
        total = float(self.histogram.sum())
        sums: list[float] = torch.cumsum(self.histogram, 0).tolist()
        alpha, beta, start, end, least = 0.0, 1.0, 0, self.bins - 1, float("inf")
        while alpha < beta:
            # Leave out a share of the values at each end.
            next_alpha, next_beta = alpha + _STEP, beta - _STEP
            low, high = float(torch.tensor(next_alpha * total)), float(torch.tensor(next_beta * total))  # in float32
            left, right = start, end
            while left < end and sums[left] < low:
                left = left + 1
            while right > start and sums[right] > high:
                right = right - 1
            # Move the end at which more bins fall away.
            next_start, next_end = start, end
            if left - start > end - right:
                next_start, alpha = left, next_alpha
            else:
                next_end, beta = right, next_beta
            if next_start == start and next_end == end:
                continue
            # Stop where the error grows.
            found = self.error(next_start, next_end)
            if found > least:
                break
            least, start, end = found, next_start, next_end
        return self.min_val + width * start, self.min_val + width * (end + 1)

    def _compute_quantization_error(self, next_start_bin: int, next_end_bin: int) -> float:
        return self.error(next_start_bin, next_end_bin)

    def _non_linear_param_search(self) -> tuple[Tensor, Tensor]:
        return self.search()

    def chosen_range(self) -> tuple[Tensor, Tensor]:
        """Return the ends of the range that is going to be quantized."""
        return self._non_linear_param_search()

    def own_qparams(self) -> QParams:
        super().own_qparams()  # raises where nothing was seen
        return choose_qparams(*self.chosen_range(), self.scheme, self.eps)

    def reset_min_max_vals(self) -> None:
        super().reset_min_max_vals()
        self.histogram.zero_()
