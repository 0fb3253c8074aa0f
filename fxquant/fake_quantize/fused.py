"""Fake-quantize with a moving average of ranges: the usual choice while training."""

from __future__ import annotations

from typing import Any

import torch

from fxquant.errors import SpecError
from fxquant.fake_quantize.plain import FakeQuantize
from fxquant.observers.moving_average import MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver


class FusedMovingAvgObsFakeQuantize(FakeQuantize):
    """``FakeQuantize`` with a moving average observer, and switches of int64 as torch.ao has them here.

    Args:
        observer: ``MovingAverageMinMaxObserver`` or ``MovingAveragePerChannelMinMaxObserver``, or what their
            ``with_args`` gives.
        quant_min, quant_max: Inclusive limits of the grid, in steps.
        **observer_kwargs: Arguments of the observer.

    Raises:
        SpecError: the observer is another one; see ``FakeQuantize``.
    """

    def __init__(
        self,
        observer: Any = MovingAverageMinMaxObserver,
        quant_min: int = 0,
        quant_max: int = 255,
        **observer_kwargs: Any,
    ) -> None:
        super().__init__(observer, quant_min, quant_max, **observer_kwargs)
        made = self.activation_post_process
        if not isinstance(made, (MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver)):
            raise SpecError(
                "FusedMovingAvgObsFakeQuantize averages ranges itself",
                got=type(made).__name__,
                expected="MovingAverageMinMaxObserver or MovingAveragePerChannelMinMaxObserver",
                hint="FakeQuantize takes any observer",
            )
        self.add_switch("fake_quant_enabled", True, torch.int64)
        self.add_switch("observer_enabled", True, torch.int64)
        self.is_symmetric_quant = self.scheme.symmetric
