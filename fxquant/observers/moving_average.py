"""Exponential moving average of the range of each batch: forgets outliers, suits activations while training."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import SpecError
from fxquant.observers.minmax import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.observers.qparams import SMALLEST_SCALE
from fxquant.plan.spec import QScheme, check_number


class MovingAverageMinMaxObserver(MinMaxObserver):
    """Tracks ``range <- range + averaging_constant * (range of the batch - range)``; the first batch sets it.

    Args:
        averaging_constant: Weight of the newest batch, 0 to 1; 1 keeps only that one.
        The others: As for ``MinMaxObserver``.

    Raises:
        SpecError: ``averaging_constant`` is out of range, or is not 1 with ``is_dynamic``; see ``MinMaxObserver``.

    Example:
        >>> observer = MovingAverageMinMaxObserver(averaging_constant=0.5)
        >>> _ = observer(torch.tensor([-1.0, 3.0])), observer(torch.tensor([-1.0, 5.0]))
        >>> observer.max_val.item()
        4.0
    """

    def __init__(
        self,
        averaging_constant: float = 0.01,
        dtype: torch.dtype | None = None,
        qscheme: object | None = None,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = SMALLEST_SCALE,
        is_dynamic: bool = False,
        *,
        factory_kwargs: dict[str, Any] | None = None,
        bits: int | None = None,
        scheme: QScheme | None = None,
    ) -> None:
        super().__init__(
            dtype=dtype,
            qscheme=qscheme,
            reduce_range=reduce_range,
            quant_min=quant_min,
            quant_max=quant_max,
            factory_kwargs=factory_kwargs,
            eps=eps,
            is_dynamic=is_dynamic,
            bits=bits,
            scheme=scheme,
        )
        self.averaging_constant = _checked(averaging_constant)
        if self.is_dynamic and averaging_constant != 1:
            raise SpecError(
                "a range measured at run time has no earlier batches to average over",
                got=f"is_dynamic=True, averaging_constant={averaging_constant}",
                expected="averaging_constant=1",
            )

    def merge(self, low: Tensor, high: Tensor) -> None:
        blend(self.min_val, self.max_val, low, high, self.averaging_constant)

    def pool_ranges(self, seen: Sequence[Mapping[str, Tensor]]) -> None:
        average(self.min_val, self.max_val, seen)


class MovingAveragePerChannelMinMaxObserver(PerChannelMinMaxObserver):
    """``MovingAverageMinMaxObserver`` for each channel, or each group within it.

    A channel that shows no finite value in a batch keeps the range that it had.

    Args:
        averaging_constant: Weight of the newest batch, 0 to 1.
        ch_axis: Dimension with one scale per index; negative counts from the end.
        The others: As for ``PerChannelMinMaxObserver``.

    Raises:
        SpecError: ``averaging_constant`` is out of range; see ``PerChannelMinMaxObserver``.
    """

    def __init__(
        self,
        averaging_constant: float = 0.01,
        ch_axis: int = 0,
        dtype: torch.dtype | None = None,
        qscheme: object | None = None,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = SMALLEST_SCALE,
        is_dynamic: bool = False,
        *,
        factory_kwargs: dict[str, Any] | None = None,
        bits: int | None = None,
        group_size: int | None = None,
        scheme: QScheme | None = None,
    ) -> None:
        super().__init__(
            ch_axis,
            dtype=dtype,
            qscheme=qscheme,
            reduce_range=reduce_range,
            quant_min=quant_min,
            quant_max=quant_max,
            factory_kwargs=factory_kwargs,
            eps=eps,
            is_dynamic=is_dynamic,
            bits=bits,
            group_size=group_size,
            scheme=scheme,
        )
        self.averaging_constant = _checked(averaging_constant)

    def merge(self, low: Tensor, high: Tensor) -> None:
        blend(self.min_val, self.max_val, low, high, self.averaging_constant)

    def pool_ranges(self, seen: Sequence[Mapping[str, Tensor]]) -> None:
        average(self.min_val, self.max_val, seen)


def blend(min_val: Tensor, max_val: Tensor, low: Tensor, high: Tensor, rate: float) -> None:
    """Average the range of a batch into the running one, in place."""
    started, seen = min_val <= max_val, low <= high
    # Written this way, and not as torch.lerp, because this is what torch.ao computes, bit for bit.
    for range_end, batch in ((min_val, low), (max_val, high)):
        blended = torch.where(started, range_end + rate * (batch - range_end), batch)
        range_end.copy_(torch.where(seen, blended, range_end))


def average(min_val: Tensor, max_val: Tensor, seen: Sequence[Mapping[str, Tensor]]) -> None:
    """Write the mean of the ranges of several observers; the order of ``seen`` does not matter, to the bit."""
    lows, highs = (torch.stack([state[name] for state in seen]) for name in ("min_val", "max_val"))
    started = lows <= highs
    count = started.sum(0)
    for range_end, ends in ((min_val, lows), (max_val, highs)):
        total = torch.where(started, ends, 0).double().sort(0).values.sum(0)  # sorted, since sums are rounded
        range_end.copy_(torch.where(count > 0, total / count, ends[0]))


def _checked(averaging_constant: float) -> float:
    check_number("averaging_constant", averaging_constant, lambda constant: 0 <= constant <= 1, "0 to 1")
    return float(averaging_constant)
