"""What the observers share whose grid follows from the smallest and the largest value alone: they can be scripted."""

import torch
from torch import Tensor

from fxquant.observers.qparams import middle
from fxquant.observers.range_observer import RangeObserver
from fxquant.plan.spec import QScheme

# No ``from __future__ import annotations`` here, nor below this class: TorchScript reads annotations as they stand.


class ExtremesObserver(RangeObserver):
    """Base of min-max observers. In TorchScript ``merge`` says what becomes of the range of a batch, as outside."""

    min_val: Tensor
    max_val: Tensor
    eps: Tensor
    nonfinite_count: Tensor

    def describe_for_script(self, scheme: QScheme) -> None:
        """Keep the grid as numbers, which are all that TorchScript knows."""
        self._axis = scheme.axis
        self._limits = (scheme.quant_min, scheme.quant_max)
        self._middle = middle(scheme) if scheme.symmetric else None
        self._float_qparams = scheme.float_qparams

    def update_in_script(self, x: Tensor) -> None:
        if not x.is_floating_point():
            x = x.float()
        if self._axis is not None and self.min_val.numel() == 0:
            self.min_val.resize_([x.size(self._axis)]).fill_(float("inf"))
            self.max_val.resize_([x.size(self._axis)]).fill_(-float("inf"))
        low, high, _, _, nonfinite = self._measured(x, self._axis)
        self.merge(low, high)
        self.nonfinite_count.add_(nonfinite)

    def qparams_in_script(self) -> tuple[Tensor, Tensor]:
        if self.min_val.numel() == 0 or bool((self.min_val > self.max_val).any()):
            raise RuntimeError("this observer has seen no data: run calibration first")
        if self._float_qparams:
            steps = float(self._limits[1] - self._limits[0])
            scale = (self.max_val - self.min_val) / steps
            scale = torch.where(scale > self.eps, scale, torch.ones_like(scale))
            return scale, -self.min_val / scale
        ends = torch.stack([self.min_val, self.max_val])
        _, _, qparams_scale, zero_point, _ = self._measured(ends, None if self._axis is None else 1)
        return qparams_scale, zero_point

    def _measured(self, x: Tensor, axis: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Range and grid of one tensor."""
        unseen = torch.full_like(self.min_val, float("inf"))
        low, high, scale, zero_point, nonfinite = torch.ops.fxquant.moving_average_qparams(
            x, unseen, -unseen, axis, 1.0, float(self.eps), self._limits[0], self._limits[1], self._middle
        )
        return low, high, scale, zero_point, nonfinite
