"""Fake-quantize with a grid that each call chooses from its own values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxquant.fake_quantize.grid import fake_quantize
from fxquant.observers.qparams import choose_qparams
from fxquant.observers.ranges import value_range
from fxquant.spec import Dynamic, QParams


def qparams_of(x: Tensor, policy: Dynamic) -> QParams:
    """The grid from the smallest to the largest finite value of ``x``, which holds at least one value.

    Without a finite value the scale is the smallest there is: what is no number saturates on any grid.
    """
    low, high, _ = value_range(x.detach(), policy.scheme)
    if low > high:
        low = high = torch.zeros_like(low)
    return choose_qparams(low, high, policy.scheme, policy.eps)


class DynamicFakeQuantize(nn.Module):
    """Rounds a tensor to the grid of its own range and back; differentiable, straight-through.

    It has no state. The range is that of the whole tensor: what a sample becomes depends on its batch.

    Args:
        policy: Scheme, per tensor, and smallest scale.
    """

    def __init__(self, policy: Dynamic) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float, of any shape; the result has its shape, dtype and memory format."""
        if not x.numel():
            return x.clone()
        qparams = qparams_of(x, self.policy)
        return fake_quantize(x, qparams.scale, qparams.zero_point, self.policy.scheme)

    def extra_repr(self) -> str:
        return f"{self.policy.scheme}, per call"
