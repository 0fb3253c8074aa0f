"""Fake-quantize with a moving average of ranges, by one operator: the usual choice while training."""

from typing import Any

import torch
from torch import Tensor

from fxquant.errors import SpecError
from fxquant.fake_quantize.plain import FakeQuantize
from fxquant.kernels import moving_average_qparams
from fxquant.observers.base import refuse_vmap
from fxquant.observers.moving_average import MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver
from fxquant.observers.qparams import middle


class FusedMovingAvgObsFakeQuantize(FakeQuantize):
    """``FakeQuantize`` with a moving average observer, whose work one operator does in one pass over the data.

    The switches are int64 here, as in torch.ao.

    Args:
        observer: ``MovingAverageMinMaxObserver`` or ``MovingAveragePerChannelMinMaxObserver``, or what their
            ``with_args`` gives.
        quant_min, quant_max: Inclusive limits of the quantized values.
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
        average = self.activation_post_process
        if not isinstance(average, (MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver)):
            raise SpecError(
                "FusedMovingAvgObsFakeQuantize averages ranges itself",
                got=type(average).__name__,
                expected="MovingAverageMinMaxObserver or MovingAveragePerChannelMinMaxObserver",
                hint="FakeQuantize takes any observer",
            )
        if self.scheme.power_of_two:
            raise SpecError(
                "FusedMovingAvgObsFakeQuantize chooses scales of any value",
                got=str(self.scheme),
                expected="power_of_two=False",
                hint="FakeQuantize with the same observer takes it",
            )
        self.add_switch("fake_quant_enabled", True, torch.int64)
        self.add_switch("observer_enabled", True, torch.int64)
        self.is_symmetric_quant = self.scheme.symmetric
        self._middle = middle(self.scheme) if self.scheme.symmetric else None

    def observe(self, x: Tensor) -> None:
        """Measure a batch, average its range into the running one, and choose qparams anew."""
        if torch.jit.is_scripting():
            self.observe_by_observer(x)
        else:
            self._observe_fused(x)

    def _observe_fused(self, x: Tensor) -> None:
        scheme = self.scheme
        if scheme.group_size is not None or scheme.float_qparams:
            self.observe_by_observer(x)
            return
        refuse_vmap(x)
        average: Any = self.activation_post_process
        shape = () if scheme.axis is None else (x.shape[scheme.axis],)
        statistics = average._buffers  # attributes of modules are slow to read, and to write
        if statistics["min_val"].shape != shape:
            average.start(shape, x)
        running_min, running_max = statistics["min_val"], statistics["max_val"]
        low, high, scale, zero_point, nonfinite = moving_average_qparams(
            x,
            running_min,
            running_max,
            scheme.axis,
            average.averaging_constant,
            average.smallest_scale,
            self.quant_min,
            self.quant_max,
            self._middle,
        )
        running_min.copy_(low)
        running_max.copy_(high)
        statistics["nonfinite_count"].add_(nonfinite)
        self.set_qparams(scale, zero_point)
