"""Fake-quantize with a grid that each call chooses from its own values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.kernels import moving_average_qparams
from fxquant.observers.qparams import middle
from fxquant.plan.spec import Dynamic, QParams


def qparams_of(x: Tensor, policy: Dynamic) -> QParams:
    """The grid from the smallest to the largest finite value of ``x``, which holds at least one value.

    Without a finite value the scale is the smallest there is: what is no number saturates on any grid.
    """
    scheme, unseen = policy.scheme, torch.full((), torch.inf, dtype=torch.float32, device=x.device)
    _, _, scale, zero_point, _ = moving_average_qparams(
        x.detach(),
        unseen,
        -unseen,
        axis=None,
        averaging_constant=1.0,
        eps=policy.eps,
        quant_min=scheme.quant_min,
        quant_max=scheme.quant_max,
        middle=middle(scheme) if scheme.symmetric else None,
    )
    return QParams(scheme, scale, zero_point)


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
