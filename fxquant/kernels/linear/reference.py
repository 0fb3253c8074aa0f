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
