"""Shrinks the range as a whole, as far as that lowers the error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.observers.bins import Bins
from fxquant.observers.histogram import HistogramObserver, cheapest
from fxquant.observers.qparams import SMALLEST_SCALE
from fxquant.plan.spec import QScheme, check_number


class MSEObserver(HistogramObserver):
    """Chooses among ``k / candidates`` of the whole range, k = 1, 2, ..., the one whose error is the smallest.

    Both ends shrink by the same factor, so the zero point stays as it is; ``HistogramObserver`` moves them one by one.

    Args:
        power: What the distance between a value and its quantized form is raised to before it is averaged; 2 is the
            mean squared error, larger ones clip less.
        candidates: How many ranges are tried.
        The others: As for ``HistogramObserver``.

    Raises:
        SpecError: ``power`` or ``candidates`` is out of range; see ``HistogramObserver``.

    Source:
        Nagel et al., "A White Paper on Neural Network Quantization", arXiv:2106.08295, section 3.1, eq. 15; MQBench
        ``MSEObserver`` (there with power 2.4).
    """

    def __init__(
        self,
        power: float = 2.0,
        candidates: int = 100,
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
    ) -> None:
        check_number("candidates", candidates, lambda count: 1 <= count <= 10000, "1 to 10000")
        super().__init__(
            bins=bins,
            dtype=dtype,
            qscheme=qscheme,
            reduce_range=reduce_range,
            quant_min=quant_min,
            quant_max=quant_max,
            factory_kwargs=factory_kwargs,
            eps=eps,
            is_dynamic=is_dynamic,
            ch_axis=ch_axis,
            bits=bits,
            group_size=group_size,
            scheme=scheme,
            power=power,
        )
        self.candidates = candidates

    def choose(self, bins: Bins) -> tuple[Tensor, Tensor]:
        parts = torch.arange(self.candidates, 0, -1, dtype=torch.float64) / self.candidates
        low, high = bins.low.unsqueeze(-1) * parts, bins.high.unsqueeze(-1) * parts
        return cheapest(bins, self.scheme, self.eps.cpu(), low, high, self.power)
