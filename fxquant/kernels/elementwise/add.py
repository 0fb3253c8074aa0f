"""``fxquant::add``: the sum of two int8 tensors on a third grid. Schema, reference, shape function."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fxquant.kernels.arithmetic import float32, requantize
from fxquant.kernels.elementwise.binary import ARGUMENTS, empty_result
from fxquant.kernels.library import define

OP = "fxquant::add"


def add(
    a: Tensor,
    a_scale: float,
    a_zero_point: int,
    b: Tensor,
    b_scale: float,
    b_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Add two tensors of stored integers, each with its own grid, and store the sum on the output's grid.

    In float32, each step rounded: ``r = float(qa - za) * sa + float(qb - zb) * sb``, then
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even. A ReLU is nothing but
    ``quant_min = zero_point``.

    Args:
        a: uint8 or int8, any shape.
        a_scale: Real units per step of ``a``, rounded to float32 first, as every scale is.
        a_zero_point: In steps, inside the range of the dtype.
        b: As ``a``, of its dtype; the shapes broadcast.
        b_scale: Of ``b``.
        b_zero_point: Of ``b``.
        scale: Of the output.
        zero_point: Of the output.
        quant_min: Smallest integer of the output, inside the range of the dtype.
        quant_max: Largest integer of the output.

    Returns:
        The dtype of ``a``, the broadcast shape, the memory layout of ``a`` (of ``b`` if only ``b`` has that shape).

    Raises:
        RuntimeError: a dtype, shape, scale, zero point or limit is not as above; the message names the argument.

    Source:
        Jacob et al., arXiv:1712.05877, section A.2; in float32 instead of fixed point.
    """
    return torch.ops.fxquant.add.default(
        a, a_scale, a_zero_point, b, b_scale, b_zero_point, scale, zero_point, quant_min, quant_max
    )


def reference(
    a: Tensor,
    a_scale: float,
    a_zero_point: int,
    b: Tensor,
    b_scale: float,
    b_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one."""
    y = empty_result(OP, a, a_scale, a_zero_point, b, b_scale, b_zero_point, scale, zero_point, quant_min, quant_max)
    real_a = (a.to(torch.int32) - a_zero_point).to(torch.float32) * float32(a_scale)
    real_b = (b.to(torch.int32) - b_zero_point).to(torch.float32) * float32(b_scale)
    return y.copy_(requantize(real_a + real_b, scale, zero_point, quant_min, quant_max, a.dtype))


define(
    "add" + ARGUMENTS,
    reference=reference,
    fake=partial(empty_result, OP),
)
