"""Multiplies a weight by a factor of each channel, as folding a batch norm does: the factor, and its shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def batch_norm_factor(gamma: Tensor | None, running_var: Tensor, eps: float) -> Tensor:
    """Return ``gamma / sqrt(running_var + eps)``, float64 [C].

    Args:
        gamma: The batch norm's weight [C], or None.
        running_var: Its running variance [C].
        eps: What it adds to the variance.
    """
    factor = torch.rsqrt(running_var.double() + eps)
    return factor if gamma is None else factor * gamma.double()


def along_outputs(factor: Tensor, layer: Any, axis: int) -> Tensor:
    """Return ``factor`` [C_out] in a shape that multiplies ``layer.weight``.

    ``axis``: dimension of the weight that counts the output channels; 1 in a transposed convolution, group by group.
    """
    trailing = [1] * (layer.weight.dim() - axis - 1)
    if axis == 0:
        return factor.reshape(-1, *trailing)
    by_group = factor.reshape(layer.groups, 1, -1).expand(-1, layer.weight.shape[0] // layer.groups, -1)
    return by_group.reshape(layer.weight.shape[0], -1, *trailing)


def along_inputs(factor: Tensor, layer: Any, axis: int) -> Tensor:
    """Return ``factor`` [C_in] in a shape that multiplies ``layer.weight``; ``axis`` as for ``along_outputs``."""
    trailing = [1] * (layer.weight.dim() - 2)
    if axis == 1:
        return factor.reshape(-1, 1, *trailing)
    groups: int = getattr(layer, "groups", 1)
    by_group = factor.reshape(groups, 1, -1).expand(-1, layer.weight.shape[0] // groups, -1)
    return by_group.reshape(layer.weight.shape[0], -1, *trailing)
