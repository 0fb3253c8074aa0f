"""Integer matrix product in plain torch: the definition of what every int8 linear layer must give."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.kernels.epilogue import Epilogue


def linear_reference(
    x: Tensor,
    x_zero_point: int | Tensor,
    weight: Tensor,
    weight_zero_point: Tensor,
    epilogue: Epilogue,
    residual: Tensor | None = None,
) -> Tensor:
    """Multiply quantized values by a weight matrix, and requantize: every result defined to the bit.

    Args:
        x: uint8 or int8 [..., in_features].
        weight: int8 [out_features, in_features].
        weight_zero_point: int32 [out_features] or [1].
        epilogue: Scales, bias, qparams of the output.
        residual: uint8 or int8 that broadcasts to the output, or None.

    Returns:
        [..., out_features], of ``epilogue.dtype``.
    """
    # float64 holds every sum of 8 bit products exactly, up to a fan-in of 2**37.
    difference = x.to(torch.float64) - x_zero_point
    sums = F.linear(difference, weight.to(torch.float64) - weight_zero_point.reshape(-1, 1))
    return epilogue.apply(sums, sums.dim() - 1, residual)


def per_token_reference(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    weight: Tensor,
    weight_zero_point: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Multiply quantized values, of which each row has qparams of its own, by a weight matrix.

    Args:
        x: uint8 or int8 [..., in_features].
        x_scale: float32 [rows], in the order of the rows in memory.
        x_zero_point: int32 [rows].
        weight: int8 [out_features, in_features].
        weight_zero_point: int32 [out_features] or [1].
        weight_scale: float32 [out_features] or [1].
        bias: float32 [out_features], or None.

    Returns:
        float32 [..., out_features].
    """
    difference = x.to(torch.float64) - x_zero_point.view(*x.shape[:-1], 1)
    sums = F.linear(difference, weight.to(torch.float64) - weight_zero_point.reshape(-1, 1))
    return per_token_epilogue(sums, x_scale, weight_scale, bias)


def per_token_epilogue(sums: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
    """Turn exact sums [..., out_features] into float values: ``float(a) * (s[m] * weight_scale[c]) + bias[c]``."""
    real = sums.to(torch.float32) * (x_scale.view(*sums.shape[:-1], 1) * weight_scale)
    return real if bias is None else real + bias
