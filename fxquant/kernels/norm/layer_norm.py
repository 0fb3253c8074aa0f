"""``fxquant::layer_norm``: rows of real numbers or integers, normalized, on a grid. Schema, reference, shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import float32, requantize
from fxquant.kernels.checks import check_count, check_dtype
from fxquant.kernels.library import define
from fxquant.kernels.norm.rows import empty_result, power_of_two

OP = "fxquant::layer_norm"

STEP_BITS = 22
"""Steps of a row are at most 2^22."""
MOST_COLUMNS = 1 << 19
"""Squares of so many steps fit an int64."""
LARGEST_EPS = 1e300


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    x_scale: float,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Take the mean off each row, divide by the standard deviation, scale and shift, and store on the output's grid.

    A row becomes whole steps of 2^-k, with the largest ``k <= 126`` at which its largest magnitude is below 2^22 of
    them, half to even; stored integers are steps already. Sums of steps and of their squares are exact in any order.
    ``mean = sum / columns`` and ``variance = squares / columns - mean * mean``, at least 0, in float64; ``whole`` is
    the mean rounded to even, ``inverse = float(1 / sqrt(variance + eps))`` with ``eps`` in squared steps. Then, each
    step in float32, ``r = (float(step - whole) - float(mean - whole)) * inverse * weight + bias``, and
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even. A row with NaN or infinity
    is NaN, which becomes ``quant_min``.

    Args:
        x: float32, uint8 or int8 [..., columns]; at most 2^19 columns.
        weight: float32 [columns].
        bias: float32 [columns].
        eps: Added to the variance, in squared real units; 0 to 1e300.
        x_scale: Real units per step of stored integers; rounded to float32 first. Their zero point does not matter.
        scale: Of the output.
        zero_point: Of the output.
        quant_min: Smallest integer of the output, inside the range of the dtype.
        quant_max: Largest integer of the output.
        dtype: Of the output, uint8 or int8.

    Returns:
        ``dtype``, of the shape of ``x``, contiguous.

    Raises:
        RuntimeError: a dtype, shape, scale, zero point or limit is not as above; the message names the argument.

    Source:
        Ba et al., "Layer Normalization", arXiv:1607.06450, eq. 3.
    """
    return torch.ops.fxquant.layer_norm.default(
        x, weight, bias, eps, x_scale, scale, zero_point, quant_min, quant_max, dtype
    )


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    x_scale: float,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one."""
    y = _empty(x, weight, bias, eps, x_scale, scale, zero_point, quant_min, quant_max, dtype)
    if y.numel() == 0:
        return y
    if x.dtype == torch.float32:
        finite = x.isfinite().all(-1, keepdim=True)
        factor = step_factor(torch.where(finite, x, 0.0))
        steps = torch.round(torch.where(finite, x, 0.0) * factor).to(torch.int64)
        in_steps = eps * factor.to(torch.float64) * factor.to(torch.float64)
    else:
        steps = x.to(torch.int64)
        finite = torch.ones_like(x[..., :1], dtype=torch.bool)
        in_steps = torch.full_like(finite, eps / (float32(x_scale) * float32(x_scale)), dtype=torch.float64)
    count, sums = x.shape[-1], (steps.sum(-1, keepdim=True), steps.square().sum(-1, keepdim=True))
    mean, squares = (each.to(torch.float64) / count for each in sums)
    variance = squares - mean * mean
    whole = torch.round(mean)
    inverse = (1.0 / torch.sqrt(torch.where(variance > 0, variance, 0.0) + in_steps)).to(torch.float32)
    inverse = torch.where(finite, inverse, torch.nan)
    off = (steps - whole.to(torch.int64)).to(torch.float32) - (mean - whole).to(torch.float32)
    real = off * inverse * weight + bias
    return y.copy_(requantize(real, scale, zero_point, quant_min, quant_max, dtype))


def step_factor(x: Tensor) -> Tensor:
    """``2^k`` for each row: how many steps 1 is.

    Args:
        x: float32 [..., columns], finite.

    Returns:
        float32 [..., 1].
    """
    field = x.abs().amax(-1, keepdim=True).view(torch.int32) >> 23  # the exponent, 127 more
    return power_of_two((STEP_BITS - 1 + 127 - field.clamp(min=1)).clamp(max=126))


def _empty(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    x_scale: float,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Check the arguments; an empty tensor of the result's shape and dtype."""
    y = empty_result(OP, x, x_scale, scale, zero_point, quant_min, quant_max, dtype)
    if not 0 <= eps <= LARGEST_EPS:
        raise KernelError(f"{OP}: eps is out of range", got=f"{eps:g}", expected="0 or a small positive number")
    if x.shape[-1] > MOST_COLUMNS:
        raise KernelError(
            f"{OP}: a row is too long for an exact sum of squares",
            got=x.shape[-1],
            expected=f"at most {MOST_COLUMNS} columns",
        )
    for argument, values in (("weight", weight), ("bias", bias)):
        check_dtype(OP, argument, values, (torch.float32,))
        check_count(OP, argument, values, x.shape[-1])
    return y


define(
    "layer_norm(Tensor x, Tensor weight, Tensor bias, float eps, float x_scale, float scale, int zero_point, "
    "int quant_min, int quant_max, ScalarType dtype) -> Tensor",
    reference=reference,
    fake=_empty,
)
