"""From the accumulators to the result: the epilogue of every int8 convolution and linear layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fxquant.kernels.arithmetic import float32, requantize


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """The operations that follow the accumulator ``a``, each in float32 and in this order, none contracted::

        r = float(a) * (x_scale * weight_scale[c])
        r = r + bias[c]
        r = r + float(residual - residual_zero_point) * residual_scale
        q = clamp(round(r * (1 / y_scale)) + y_zero_point, quant_min, quant_max)

    Rounding is half to even. An activation is no operation of its own: it narrows ``quant_min`` and ``quant_max``. With
    ``dtype`` float32 the result is ``r`` itself, and the qparams of the output are not looked at.
    """

    x_scale: float
    """Scale of the input."""
    weight_scale: Tensor
    """float32 [C], or [1] for one scale for all output channels."""
    bias: Tensor | None
    """float32 [C], float values."""
    y_scale: float = 1.0
    y_zero_point: int = 0
    quant_min: int = 0
    quant_max: int = 0
    dtype: torch.dtype
    """uint8 or int8: how the output is stored. float32: it is not rounded."""
    residual_scale: float = 1.0
    residual_zero_point: int = 0

    def apply(self, sums: Tensor, channel_dim: int, residual: Tensor | None = None) -> Tensor:
        """Turn exact sums into the result.

        Args:
            sums: ``sum((q_x - z_x) * (q_w - z_w))``, whole numbers, in any float dtype that holds them exactly.
            channel_dim: Dimension of ``sums`` that the output channels lie along.
            residual: Quantized values that broadcast to ``sums``, or None.

        Returns:
            Quantized values, or float values, of ``dtype``, shape of ``sums``.
        """
        shape = [1] * sums.dim()
        shape[channel_dim] = -1
        real = sums.to(torch.float32) * (self.weight_scale * float32(self.x_scale)).reshape(shape)
        if self.bias is not None:
            real = real + self.bias.reshape(shape)
        if residual is not None:
            real = real + self.real_residual(residual)
        if self.dtype == torch.float32:
            return real
        return requantize(real, self.y_scale, self.y_zero_point, self.quant_min, self.quant_max, self.dtype)

    def real_residual(self, residual: Tensor) -> Tensor:
        """Return the float values, float32, that a residual's quantized values stand for."""
        difference = (residual.to(torch.int32) - self.residual_zero_point).to(torch.float32)
        return difference * float32(self.residual_scale)
