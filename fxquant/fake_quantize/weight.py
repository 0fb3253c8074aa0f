"""Fake-quantize of a weight that trains: its range is that of the present weight, and its largest value learns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.fake_quantize.fused import FusedMovingAvgObsFakeQuantize
from fxquant.observers.moving_average import MovingAveragePerChannelMinMaxObserver

WIDER = 1 + 2.0**-22
"""Two to four units in the last place of a scale: 127.5 steps become less, also where the quotient is rounded up."""


class WeightFakeQuantize(FusedMovingAvgObsFakeQuantize):
    """``FusedMovingAvgObsFakeQuantize`` for weights, whose range is that of the present weight.

    A weight is seen whole in every step, so it needs no average. An average lags behind what a step, or the batch norm
    that is folded in, makes of the weight, and a model that is converted after few steps would have ranges of before.

    With the limits -128 and 127 the largest weight of a channel, if it is positive, is 127.5 steps. These round to 128,
    which is beyond the limits, and what is clipped gets no gradient: the weight would stay where it is. In training
    mode the scale of such a channel is larger by 2.4e-7 of itself, so that the weight rounds to 127 and is not clipped.
    In evaluation mode the scale is what the observer says. The integers are the same, but for weights that lie in the
    middle between two.

    Args:
        observer, quant_min, quant_max: As for ``FusedMovingAvgObsFakeQuantize``; the defaults are int8, symmetric, per
            output channel.
        dtype, qscheme, averaging_constant: Arguments of the observer.
        **observer_kwargs: Its other arguments.

    Raises:
        SpecError: as for ``FusedMovingAvgObsFakeQuantize``.
    """

    def __init__(
        self,
        observer: Any = MovingAveragePerChannelMinMaxObserver,
        quant_min: int = -128,
        quant_max: int = 127,
        *,
        dtype: torch.dtype = torch.int8,
        qscheme: object = "per_channel_symmetric",
        averaging_constant: float = 1,
        **observer_kwargs: Any,
    ) -> None:
        super().__init__(
            observer,
            quant_min,
            quant_max,
            dtype=dtype,
            qscheme=qscheme,
            averaging_constant=averaging_constant,
            **observer_kwargs,
        )
        self._wider = WIDER  # TorchScript reads attributes alone

    def observe(self, x: Tensor) -> None:
        """Measure a weight, and choose qparams anew."""
        if torch.jit.is_scripting():
            self.observe_by_observer(x)
        else:
            self._observe_fused(x)
        if self.training and self.is_symmetric_quant and self.quant_min + self.quant_max < 0:
            seen = self.activation_post_process
            # Typed as modules, they are tensors; TorchScript takes no Any here.
            positive = seen.max_val >= -seen.min_val  # type: ignore[operator]
            self.scale.copy_(torch.where(positive, self.scale * self._wider, self.scale))
