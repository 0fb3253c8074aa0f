"""Qparams applied to a tensor: the operator for their granularity, per tensor, per channel or per group."""

from __future__ import annotations

from torch import Tensor

from fxquant.kernels import (
    dequantize,
    fake_quantize_per_channel_affine,
    fake_quantize_per_tensor_affine,
    quantize,
)
from fxquant.kernels.fake_quantize.float_qparams import dequantize_float_qparams, quantize_float_qparams
from fxquant.observers.ranges import split_groups
from fxquant.plan.spec import QScheme


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, scheme: QScheme) -> Tensor:
    """Fake-quantize; the gradient is straight-through inside the limits, 0 outside.

    Args:
        x: float, any shape that has the scheme's axis.
        scale, zero_point: [1] per tensor, [C] per channel, [C, groups] per group.
        scheme: Says which values share a scale, and the limits.

    Returns:
        Shape and dtype of ``x``; its memory format too, except that groups make it contiguous.

    Raises:
        InputError: ``x`` does not have the scheme's axis, or does not divide into groups.
        RuntimeError: the number of channels differs; the message names the argument.
    """
    if scheme.axis is None:
        return fake_quantize_per_tensor_affine(x, scale, zero_point, scheme.quant_min, scheme.quant_max)
    limits = (scheme.quant_min, scheme.quant_max)
    if scheme.group_size is None and -x.dim() <= scheme.axis < x.dim():  # nothing to rearrange
        return fake_quantize_per_channel_affine(x, scale, zero_point, scheme.axis, *limits)
    channels, axis = _channels(x, scheme)
    y = fake_quantize_per_channel_affine(channels, scale.flatten(), zero_point.flatten(), axis, *limits)
    return y.reshape(x.shape)


def to_integers(x: Tensor, scale: Tensor, zero_point: Tensor, scheme: QScheme) -> Tensor:
    """Quantize; the result has ``scheme.dtype``, all else is as of ``fake_quantize``."""
    limits = (scheme.quant_min, scheme.quant_max)
    if scheme.axis is None:
        return quantize(x, scale, zero_point, *limits, scheme.dtype)
    channels, axis = _channels(x, scheme)
    qparams = (scale.flatten(), zero_point.flatten())
    if scheme.float_qparams:
        return quantize_float_qparams("to_integers", channels, *qparams, axis, *limits, scheme.dtype).reshape(x.shape)
    return quantize(channels, *qparams, *limits, scheme.dtype, axis).reshape(x.shape)


def from_integers(q: Tensor, scale: Tensor, zero_point: Tensor, scheme: QScheme) -> Tensor:
    """Invert ``to_integers``; the result is float32."""
    if scheme.axis is None:
        return dequantize(q, scale, zero_point)
    channels, axis = _channels(q, scheme)
    back = dequantize_float_qparams if scheme.float_qparams else dequantize
    return back(channels, scale.flatten(), zero_point.flatten(), axis).reshape(q.shape)


def _channels(x: Tensor, scheme: QScheme) -> tuple[Tensor, int]:
    """Return ``x`` in a shape in which every index of one dimension has its own scale, and that dimension.

    Per group, [..., C, D, ...] becomes [..., C * groups, group_size, ...].
    """
    x, kept = split_groups(x, scheme)
    return (x.flatten(*kept) if len(kept) > 1 else x), kept[0]
