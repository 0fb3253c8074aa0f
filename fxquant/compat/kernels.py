"""The operators of fake quantization under torch's names, with torch's checks and the words of its errors."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant import kernels

fake_quantize_per_tensor_affine = kernels.fake_quantize_per_tensor_affine
_fake_quantize_learnable_per_tensor_affine = kernels.fake_quantize_learnable_per_tensor_affine
_fake_quantize_learnable_per_channel_affine = kernels.fake_quantize_learnable_per_channel_affine
fused_moving_avg_obs_fake_quant = kernels.fused_moving_avg_obs_fake_quant


def fake_quantize_per_channel_affine(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    """Round ``input`` to integers, channel by channel, and map it back.

    Args:
        input: float, any shape that has the axis.
        scale: float32 [C].
        zero_point: int32 or float32 [C].
        axis: Dimension that counts the channels.
        quant_min, quant_max: Inclusive limits of the quantized values.

    Raises:
        RuntimeError: ``scale`` is not float32, or a zero point of int32 lies outside of the limits.
    """
    if scale.dtype != torch.float32:
        raise RuntimeError(f"Scale must be Float, found {scale.dtype}")
    if not zero_point.is_floating_point() and bool(((zero_point < quant_min) | (zero_point > quant_max)).any()):
        raise RuntimeError("`zero_point` must be between `quant_min` and `quant_max`.")
    return kernels.fake_quantize_per_channel_affine(input, scale, zero_point, axis, quant_min, quant_max)
