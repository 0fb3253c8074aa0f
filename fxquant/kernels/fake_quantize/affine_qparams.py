"""From a range to scale and zero point: the formula, written once in Python, and once in csrc/math/qparams.h."""

from __future__ import annotations

import torch
from torch import Tensor

_FAR = 2.0**33
"""A distance from 0 that no zero point of 32 bits has."""


def affine_qparams(
    low: Tensor, high: Tensor, quant_min: int, quant_max: int, middle: int | None, eps: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Map ranges, widened to hold 0, onto the integers ``[quant_min, quant_max]``.

    Args:
        low: Smallest value seen, float, any shape.
        high: Largest value seen, of that shape.
        quant_min: Smallest quantized value.
        quant_max: Largest quantized value.
        middle: Zero point of symmetric quantization, whose range reaches ``(quant_max - quant_min) / 2`` scales to
            either side. None: the zero point is chosen too.
        eps: Smallest scale; a number, or float [1].

    Returns:
        ``scale`` float32, and ``zero_point`` int32; of the shape of ``low``.
    """
    steps = float(quant_max - quant_min)
    low, high = torch.where(low < 0, low, 0.0), torch.where(high > 0, high, 0.0)  # NaN becomes 0
    if middle is not None:
        scale = torch.clamp(torch.maximum(-low, high) / (steps / 2), min=eps)
        return scale.float(), torch.full_like(scale, middle, dtype=torch.int32)
    scale = torch.clamp(step_width(low, high, steps), min=eps)
    below = torch.round(low / scale)  # up to 2^32; more, or NaN, of a range that is not finite
    zero_point = quant_min - torch.where(below > -_FAR, below, -_FAR).to(torch.int64)
    return scale.float(), zero_point.clamp(quant_min, quant_max).to(torch.int32)


def step_width(low: Tensor, high: Tensor, steps: float) -> Tensor:
    """Return ``(high - low) / steps``, also where ``high - low`` is beyond the largest float."""
    width = high - low
    return torch.where(width.isfinite(), width / steps, high / steps - low / steps)
