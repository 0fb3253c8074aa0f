"""From a float weight to the integers that a lowered module keeps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import LoweringError
from fxquant.kernels import quantize
from fxquant.plan.spec import QParams

LARGEST_FAN_IN = (2**31 - 1) // (255 * 128)
"""Products of 8 bit numbers that an int32 sum holds for certain."""


def integer_weight(weight: Tensor, qparams: QParams) -> tuple[Tensor, QParams]:
    """Round a weight to its grid.

    Args:
        weight: float [C_out, ...].
        qparams: At most 8 bits, one scale for the tensor or one per index of dimension 0.

    Returns:
        The integers, int8 of the shape of ``weight``, and the grid they are on. That is ``qparams``, with its axis as
        0 or None; an unsigned grid is moved down by half its width, so that int8 can store it.

    Raises:
        LoweringError: the weight holds inf or NaN, the grid is none that int8 operators take, or the sum of products
            could leave the range of int32.
    """
    scheme = qparams.scheme
    if scheme.bits > 8 or scheme.group_size is not None or scheme.float_qparams:
        raise LoweringError(
            "int8 operators cannot take this weight grid",
            got=str(scheme),
            expected="at most 8 bits, one integer grid for the tensor or one per output channel",
        )
    axis = scheme.axis if scheme.axis is None else scheme.axis % weight.dim()
    if axis not in (None, 0):
        raise LoweringError(
            "int8 operators need one scale per output channel of the weight",
            got=f"axis={scheme.axis} of a weight of shape {list(weight.shape)}",
            expected="axis=0, or one scale for the whole tensor",
        )
    if not all_finite(weight):
        raise LoweringError(
            "the weight holds values that are not finite",
            got=f"{int((~torch.isfinite(weight)).sum())} of {weight.numel()} values are inf or NaN",
            expected="finite weights",
        )
    if (fan_in := weight[0].numel() if len(weight) else 0) > LARGEST_FAN_IN:
        raise LoweringError(
            "too many products per output for int32 sums", got=fan_in, expected=f"at most {LARGEST_FAN_IN}"
        )
    shift = 0 if scheme.signed else 2 ** (scheme.bits - 1)
    limits = (scheme.quant_min - shift, scheme.quant_max - shift)
    moved = QParams(
        replace(scheme, signed=True, axis=axis, limits=limits if scheme.limits else None),
        qparams.scale,
        qparams.zero_point - shift,
    )
    integers = quantize(weight.detach(), moved.scale, moved.zero_point, *limits, torch.int8, axis)
    return integers.contiguous(), moved


def each_channel_is_a_group(layer: Any) -> bool:
    """Whether a layer of weight [C, C_out / groups, ...] is depthwise: dimension 0 then counts output channels too."""
    return tuple(layer.weight.shape[:2]) == (getattr(layer, "groups", 0), 1)


def all_finite(values: Tensor) -> bool:
    """Whether no value is inf or NaN; several times quicker than ``isfinite().all()``, which makes two more tensors."""
    return not values.numel() or all(math.isfinite(bound) for bound in torch.aminmax(values.detach()))


def float_bias(bias: Tensor | None) -> Tensor | None:
    """A bias as int8 operators take it: float32 [C_out] or None.

    Raises:
        LoweringError: it holds inf or NaN.
    """
    if bias is None:
        return None
    if not all_finite(bias):
        raise LoweringError(
            "the bias holds values that are not finite",
            got=f"{int((~torch.isfinite(bias)).sum())} of {bias.numel()} values are inf or NaN",
            expected="a finite bias; with a batch norm folded in, finite statistics too",
        )
    return bias.detach().to(torch.float32).clone()


def byte_qparams(role: str, qparams: QParams) -> QParams:
    """The grid of an activation, if int8 operators can take it.

    Raises:
        LoweringError: more than 8 bits, or more than one grid for the tensor.
    """
    scheme = qparams.scheme
    if scheme.bits > 8 or scheme.axis is not None or scheme.float_qparams:
        raise LoweringError(
            f"int8 operators cannot take the grid of {role}",
            got=str(scheme),
            expected="at most 8 bits, one integer grid for the whole tensor",
        )
    return qparams
