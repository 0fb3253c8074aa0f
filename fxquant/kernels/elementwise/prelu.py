"""``fxquant::prelu``: a leaky ReLU with a slope per channel, on another grid. Schema, reference, shape function."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import check_output, check_qparams, check_stored, float32, requantize
from fxquant.kernels.checks import check_dtype
from fxquant.kernels.library import define

OP = "fxquant::prelu"


def prelu(
    x: Tensor,
    x_scale: float,
    x_zero_point: int,
    slope: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Multiply what lies below 0 by its channel's slope, and store the result on the output's grid.

    ``r = float(q - x_zero_point) * x_scale``; where ``r < 0``, ``r = r * slope``; then
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even; each step in float32.

    Args:
        x: uint8 or int8, any shape.
        x_scale: Real units per step of ``x``, rounded to float32 first.
        x_zero_point: In steps, inside the range of the dtype.
        slope: float32, broadcasts to ``x``: [C, 1, 1] for images.
        scale: Of the output.
        zero_point: Of the output.
        quant_min: Smallest integer of the output, inside the range of the dtype.
        quant_max: Largest integer of the output.

    Returns:
        The dtype, shape and memory layout of ``x``.

    Raises:
        RuntimeError: a dtype, shape, scale, zero point or limit is not as above; the message names the argument.

    Source:
        He et al., "Delving Deep into Rectifiers", arXiv:1502.01852, eq. 1.
    """
    return torch.ops.fxquant.prelu.default(x, x_scale, x_zero_point, slope, scale, zero_point, quant_min, quant_max)


def reference(
    x: Tensor,
    x_scale: float,
    x_zero_point: int,
    slope: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one."""
    y = empty_result(x, x_scale, x_zero_point, slope, scale, zero_point, quant_min, quant_max)
    real = (x.to(torch.int32) - x_zero_point).to(torch.float32) * float32(x_scale)
    real = torch.where(real < 0, real * slope, real)
    return y.copy_(requantize(real, scale, zero_point, quant_min, quant_max, x.dtype))


def empty_result(
    x: Tensor,
    x_scale: float,
    x_zero_point: int,
    slope: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Check the arguments; an empty tensor of the result's shape, dtype and layout."""
    check_stored(OP, "x", x)
    check_dtype(OP, "slope", slope, (torch.float32,))
    check_qparams(OP, "x_", x_scale, x_zero_point, x.dtype)
    check_output(OP, scale, zero_point, quant_min, quant_max, x.dtype)
    own = x.shape[x.dim() - slope.dim() :] if slope.dim() <= x.dim() else ()
    if len(own) != slope.dim() or any(size not in (1, wanted) for size, wanted in zip(slope.shape, own, strict=True)):
        raise KernelError(
            f"{OP}: slope does not broadcast to x",
            got=f"{list(slope.shape)} and {list(x.shape)}",
            expected="sizes that are equal or 1, from the last dimension on",
        )
    return torch.empty_like(x)


define(
    "prelu(Tensor x, float x_scale, int x_zero_point, Tensor slope, float scale, int zero_point, int quant_min, "
    "int quant_max) -> Tensor",
    reference=reference,
    fake=empty_result,
)
