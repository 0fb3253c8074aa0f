"""The factor by which a batch norm multiplies the weight before it, when it is folded away or about to be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
    factor = batch_norm_factor(gamma, running_var, eps)
    return torch.where(factor.abs() < SMALLEST_FACTOR, torch.ones_like(factor), factor).to(running_var.dtype)


def along_outputs(factor: Tensor, layer: Any, axis: int) -> Tensor:
    """``factor`` [C_out] in a shape that multiplies ``layer.weight``.

    ``axis``: dimension of the weight that counts the output channels; 1 in a transposed convolution, group by group.
    """
    behind = [1] * (layer.weight.dim() - axis - 1)
    if axis == 0:
        return factor.reshape(-1, *behind)
    by_group = factor.reshape(layer.groups, 1, -1).expand(-1, layer.weight.shape[0] // layer.groups, -1)
    return by_group.reshape(layer.weight.shape[0], -1, *behind)
