"""Covers all values but a given share of the largest and of the smallest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.observers.bins import Bins
from fxquant.observers.histogram import HistogramObserver
from fxquant.observers.qparams import SMALLEST_SCALE
from fxquant.plan.spec import QScheme, check_number


class PercentileObserver(HistogramObserver):
    """Ends the range at percentiles of the values, whatever the error on those beyond: robust against outliers.

    The upper end is the ``percentile`` of all values, the lower one the ``100 - percentile``; for symmetric qparams,
    both are the ``percentile`` of the magnitudes. A percentile is as exact as a bin is wide.

    Args:
        percentile: Above 50, at most 100, which keeps all.
        The others: As for ``HistogramObserver``.

    Raises:
        SpecError: ``percentile`` is out of range; see ``HistogramObserver``.

    Source:
        Wu et al., "Integer Quantization for Deep Learning Inference: Principles and Empirical Evaluation",
        arXiv:2004.09602, section 5.2.

    Example:
        >>> observer = PercentileObserver(99.0)
        >>> _ = observer(torch.arange(1000.0))
        >>> observer.chosen_range()[1].item()
        989.5
    """

    def __init__(
        self,
        percentile: float = 99.99,
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
        check_number("percentile", percentile, lambda share: 50 < share <= 100, "above 50, at most 100")
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
        )
        self.percentile = percentile

    def choose(self, bins: Bins) -> tuple[Tensor, Tensor]:
        share = self.percentile / 100
        if self.scheme.symmetric:
            reach = bins.magnitudes().quantile(share)
            return -reach, reach
        return bins.quantile(1 - share), bins.quantile(share)
