"""The factor by which a batch norm multiplies the weight before it, when it is folded away or about to be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.kernels.gradient import Differentiable, below_autograd, differentiate
from fxquant.kernels.library import compose

SMALLEST_FACTOR = 1e-12
"""Below it, a factor is taken as 1 while training: a channel that is switched off can come back."""


def batch_norm_factor(gamma: Tensor | None, running_var: Tensor, eps: float) -> Tensor:
    """``gamma / sqrt(running_var + eps)``, float64 [C].

    Args:
        gamma: The batch norm's weight [C], or None.
        running_var: Its running variance [C].
        eps: What it adds to the variance.
    """
    factor = torch.rsqrt(running_var.double() + eps)
    return factor if gamma is None else factor * gamma.double()


def training_factor(gamma: Tensor | None, running_var: Tensor, eps: float) -> Tensor:
    """The factor that a weight is quantized with and then divided by, so never near 0; in the dtype of the statistics.

    Source:
        Krishnamoorthi, arXiv:1806.08342, section 3.2.2: the running variance keeps the grid of the weight steady.
    """
    gamma = torch.ones_like(running_var) if gamma is None else gamma
    return torch.ops.fxquant.training_factor.default(gamma, running_var, eps)[0]


def along_outputs(factor: Tensor, layer: Any, axis: int) -> Tensor:
    """``factor`` [C_out] in a shape that multiplies ``layer.weight``.

    ``axis``: dimension of the weight that counts the output channels; 1 in a transposed convolution, group by group.
    """
    behind = [1] * (layer.weight.dim() - axis - 1)
    if axis == 0:
        return factor.reshape(-1, *behind)
    by_group = factor.reshape(layer.groups, 1, -1).expand(-1, layer.weight.shape[0] // layer.groups, -1)
    return by_group.reshape(layer.weight.shape[0], -1, *behind)


def _factor_and_slope(gamma: Tensor, running_var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    factor = batch_norm_factor(gamma, running_var, eps)
    slope = torch.rsqrt(running_var.double() + eps)
    small = factor.abs() < SMALLEST_FACTOR
    factor, slope = torch.where(small, 1.0, factor), torch.where(small, 0.0, slope)
    return factor.to(running_var.dtype), slope.to(gamma.dtype)


def _fake(gamma: Tensor, running_var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(running_var), torch.empty_like(gamma)


class _Factor(Differentiable):
    """Keeps the slope, and not the variance: the batch norm changes it before the backward pass."""

    @staticmethod
    def forward(ctx: Any, gamma: Tensor, running_var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        factor, slope = below_autograd(torch.ops.fxquant.training_factor.default, gamma, running_var, eps)
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(slope)
        return factor, slope

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grad.to(slope.dtype) * slope, None, None


# An operator of its own, since compilers like to compute what is cheap again from a variance that has changed by then.
compose(
    "training_factor(Tensor gamma, Tensor running_var, float eps) -> (Tensor factor, Tensor slope)",
    kernel=_factor_and_slope,
    fake=_fake,
    gradient=True,
)
differentiate(torch.ops.fxquant.training_factor.default, _Factor.apply)
