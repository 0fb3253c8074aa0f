"""From an observed range to scale and zero point, and what the smallest scale costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import CalibrationError
from fxquant.kernels.fake_quantize.affine_qparams import affine_qparams, step_width
from fxquant.plan.spec import QParams, QScheme

SMALLEST_SCALE = torch.finfo(torch.float32).smallest_normal
"""Of scales that are chosen: its inverse is finite, and nothing about it is rounded away."""


def choose_qparams(low: Tensor, high: Tensor, scheme: QScheme, eps: float | Tensor = SMALLEST_SCALE) -> QParams:
    """Choose the affine map of a range of float values onto the integers of a scheme.

    The range is first widened to contain 0, so that 0.0 (padding, ReLU) is represented exactly::

        low, high = min(low, 0), max(high, 0)
        scale = max((high - low) / (quant_max - quant_min), eps)
        zero_point = clamp(quant_min - round(low / scale), quant_min, quant_max)

    With ``scheme.symmetric`` the zero point is the middle of the integer range, and both sides have the same width::

        scale = max(max(-low, high) / ((quant_max - quant_min) / 2), eps)

    With ``scheme.power_of_two`` the scale becomes the power of two below or above it: that with less error, if values
    lie evenly in the range. Observers that keep a histogram search among such scales, by the values that they saw.

    With ``scheme.float_qparams`` the range is taken as it is, and nothing is rounded::

        scale = (high - low) / (quant_max - quant_min)    # 1 where that is at most eps
        zero_point = -low / scale

    Args:
        low: Smallest value seen. float [C], or [C, groups]; C is 1 per tensor (0-dim does too), else the size of
            ``scheme.axis``.
        high: Largest value seen, of the same shape, ``high >= low``.
        scheme: Kind of the qparams.
        eps: Smallest scale. float, or float [1].

    Returns:
        QParams with ``scale`` float32 of the shape of ``low``, at least [1], and at least
        ``eps``, and ``zero_point`` int32 of that shape, inside ``[quant_min, quant_max]``. If
        ``scheme.symmetric`` it is the middle of the integers: 0 if signed, 128 for uint8. If ``scheme.float_qparams``
        it is float32, and a scale that would be at most ``eps`` is 1.

    Raises:
        CalibrationError: ``low`` or ``high`` holds inf or NaN, or they are crossed: nothing was seen. The message
            gives the first such channel.

    Source:
        Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
        Inference", arXiv:1712.05877, eq. 1 and section 3. Symmetric: the bound is ``(quant_max - quant_min) / 2``
        steps (127.5 for int8), as in torch.ao ``UniformQuantizationObserverBase``; not 127.
    """
    low, high = torch.atleast_1d(low), torch.atleast_1d(high)
    _require_finite(low, high)
    return QParams(scheme, *scale_and_zero_point(low, high, scheme, eps))


def scale_and_zero_point(
    low: Tensor, high: Tensor, scheme: QScheme, eps: float | Tensor = SMALLEST_SCALE
) -> tuple[Tensor, Tensor]:
    """Return what ``choose_qparams`` chooses for ranges that are known to be finite; of their shape, which is free."""
    limits = scheme.quant_min, scheme.quant_max
    if scheme.float_qparams:
        scale = step_width(low, high, float(limits[1] - limits[0]))
        scale = torch.where(scale > eps, scale, torch.ones_like(scale))
        return scale.float(), (-low / scale).float()
    scale, zero_point = affine_qparams(low, high, *limits, middle(scheme) if scheme.symmetric else None, eps)
    return _powers_of_two(low, high, scale, scheme, eps) if scheme.power_of_two else (scale, zero_point)


def _powers_of_two(
    low: Tensor, high: Tensor, scale: Tensor, scheme: QScheme, eps: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Return the powers of two next to scales with which evenly spread values have less error, and the zero points.

    Source:
        Habi et al., "HPTQ: Hardware-Friendly Post Training Quantization", arXiv:2109.09113, section 3: thresholds that
        are powers of two.
    """
    part, exponent = torch.frexp(scale.double())  # scale = part * 2 ** exponent, with a part from 0.5 to 1
    below = torch.ldexp(torch.full_like(part, 0.5), exponent)
    above = torch.where(part > 0.5, 2 * below, below)
    zero_points = [_zero_point(low, each, scheme) for each in (below, above)]
    errors = [
        _error_of_even_values(low.double(), high.double(), each, zero_point, scheme)
        for each, zero_point in zip((below, above), zero_points, strict=True)
    ]
    takes_below = ((errors[0] <= errors[1]) & (below >= eps)) | ~above.float().isfinite()
    chosen = torch.where(takes_below, below, above)
    return chosen.float(), torch.where(takes_below, zero_points[0], zero_points[1]).to(torch.int32)


def _zero_point(low: Tensor, scale: Tensor, scheme: QScheme) -> Tensor:
    if scheme.symmetric:
        return torch.full_like(scale, middle(scheme))
    return (scheme.quant_min - (low.double().clamp(max=0) / scale).round()).clamp(scheme.quant_min, scheme.quant_max)


def _error_of_even_values(low: Tensor, high: Tensor, scale: Tensor, zero_point: Tensor, scheme: QScheme) -> Tensor:
    """Integrate the squared error over the range: ``scale^2 / 12`` inside the quantization range, clipping beside."""
    first, last = (scheme.quant_min - zero_point) * scale, (scheme.quant_max - zero_point) * scale
    inside = (torch.minimum(high, last) - torch.maximum(low, first)).clamp(min=0)
    clipped = (first - low).clamp(min=0) ** 3 + (high - last).clamp(min=0) ** 3
    return inside * scale.square() / 12 + clipped / 3


def middle(scheme: QScheme) -> int:
    """Return the zero point of symmetric quantization: 0 if signed, else the upper of the two middles."""
    return 0 if scheme.signed else (scheme.quant_min + scheme.quant_max + 1) // 2


def _require_finite(low: Tensor, high: Tensor) -> None:
    if torch.compiler.is_compiling() or low.is_meta:  # values are not known
        return
    usable = low.isfinite() & high.isfinite() & (low <= high)
    if bool(usable.all()):
        return
    index = tuple(torch.nonzero(~usable)[0].tolist())
    where = f" of channel {', group '.join(map(str, index))}" if usable.numel() > 1 else ""
    first, last = float(low[index]), float(high[index])
    if first > last:
        raise CalibrationError(
            f"no finite value was observed{where}",
            hint="run calibration first; if it did run, this tensor was empty, or NaN and infinite throughout",
        )
    raise CalibrationError(
        f"the observed range{where} is not finite",
        got=f"[{first:g}, {last:g}]",
        hint="the calibration data, or a layer before this tensor, overflows",
    )


FEW_STEPS = 0.25
"""Part of the integers: values that reach fewer of them have lost two bits and more."""

VALUES_TOO_SMALL = "values are so small that the smallest scale leaves them few quantized values"
VALUES_TOO_SMALL_HINT = (
    "scale the data up (how is it normalized?); where the observer was given an eps=, give it a smaller one"
)


@dataclass(frozen=True, slots=True)
class BelowSmallestScale:
    """Says how much of the integer range the smallest scale leaves unused."""

    text: str
    """One line, in figures."""
    unused: float
    """Return how many times as many integers there are as are used."""


def quantization_range(qparams: QParams) -> tuple[float, float]:
    """Return the smallest and the largest float value that qparams represent, of all channels."""
    scale, zero_point = qparams.scale.double(), qparams.zero_point.double()
    low, high = (qparams.scheme.quant_min - zero_point) * scale, (qparams.scheme.quant_max - zero_point) * scale
    return float(low.min()), float(high.max())


def below_smallest_scale(observer: Any) -> BelowSmallestScale | None:
    """Return the channel of an observer that loses most by ``eps``; None where none loses more than a bit or two.

    Args:
        observer: With ``min_val``, ``max_val``, ``eps`` and ``scheme``; of any other nothing is known.
    """
    state: list[Any] = [getattr(observer, name, None) for name in ("min_val", "max_val", "eps")]
    if not all(isinstance(each, Tensor) and each.numel() for each in state):
        return None
    low, high, eps = state
    low, high, smallest = low.double().flatten(), high.double().flatten(), float(eps)
    steps = observer.scheme.quant_max - observer.scheme.quant_min
    used = _reach(low, high, observer.scheme) / (smallest * steps)
    lost = (low <= high) & (used > 0) & (used < FEW_STEPS)
    if not bool(lost.any()):
        return None
    worst = int(torch.where(lost, used, torch.inf).argmin())
    who = f"channel {worst}: " if low.numel() > 1 else ""
    text = f"{who}{low[worst]:.3g} to {high[worst]:.3g} is {used[worst] * steps:.1f} of {steps} steps"
    return BelowSmallestScale(f"{text}: the observer's eps= keeps scales above {smallest:.3g}", 1 / float(used[worst]))


def _reach(low: Tensor, high: Tensor, scheme: QScheme) -> Tensor:
    """Return the width of the quantization range, in float values, if no scale is too small for it."""
    if scheme.float_qparams:
        return high - low
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    return 2 * torch.maximum(-low, high) if scheme.symmetric else high - low
