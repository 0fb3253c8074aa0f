"""``fxquant::cat``: int8 tensors joined on one grid. Schema, reference, shape function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import (
    check_output,
    check_qparams,
    check_same_dtype,
    check_stored,
    float32,
    requantize,
)
from fxquant.kernels.checks import check_axis
from fxquant.kernels.library import define
from fxquant.kernels.pool.windows import memory_format

OP = "fxquant::cat"


def cat(
    tensors: Sequence[Tensor],
    scales: Sequence[float],
    zero_points: Sequence[int],
    dim: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Join tensors of stored integers along ``dim``, all on the output's grid.

    An input that is on that grid already is copied, another one requantized element by element:
    ``q = clamp(round(float(qi - zi) * si * (1 / scale)) + zero_point, quant_min, quant_max)`` in float32, each step
    rounded, ties to even. (Copying is no second rule: with equal grids the formula returns its input.)

    Args:
        tensors: uint8 or int8, all of one dtype; of one shape but for ``dim``. One-dimensional tensors without an
            element are left out, as ``torch.cat`` does.
        scales: Real units per step, one per tensor, rounded to float32 first.
        zero_points: In steps, one per tensor, inside the range of the dtype.
        dim: Dimension to join along; negative counts from the end.
        scale: Of the output.
        zero_point: Of the output.
        quant_min: Smallest integer of the output, inside the range of the dtype.
        quant_max: Largest integer of the output.

    Returns:
        The dtype of the inputs; channels_last if every input is, else contiguous.

    Raises:
        RuntimeError: a dtype, shape, count, scale, zero point or limit is not as above; the message names it.
    """
    return torch.ops.fxquant.cat.default(tensors, scales, zero_points, dim, scale, zero_point, quant_min, quant_max)


def reference(
    tensors: Sequence[Tensor],
    scales: Sequence[float],
    zero_points: Sequence[int],
    dim: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one."""
    y = empty_joined(tensors, scales, zero_points, dim, scale, zero_point, quant_min, quant_max)
    parts = [
        requantize(
            (x.to(torch.int32) - z).to(torch.float32) * float32(s), scale, zero_point, quant_min, quant_max, x.dtype
        )
        for x, s, z in zip(tensors, scales, zero_points, strict=True)
    ]
    return y.copy_(torch.cat(parts, dim))


def empty_joined(
    tensors: Sequence[Tensor],
    scales: Sequence[float],
    zero_points: Sequence[int],
    dim: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Check the arguments; an empty tensor of the result's shape, dtype and layout."""
    if not tensors or not len(tensors) == len(scales) == len(zero_points):
        raise KernelError(
            f"{OP}: tensors, scales and zero_points do not go together",
            got=f"{len(tensors)}, {len(scales)} and {len(zero_points)} of them",
            expected="as many of each, and at least one",
        )
    for index, (x, s, z) in enumerate(zip(tensors, scales, zero_points, strict=True)):
        name = f"tensors[{index}]"
        check_stored(OP, name, x)
        check_same_dtype(OP, name, x, tensors[0])
        check_qparams(OP, f"{name} ", s, z, x.dtype)
    check_output(OP, scale, zero_point, quant_min, quant_max, tensors[0].dtype)
    parts = [x for x in tensors if x.dim() != 1 or x.shape[0] != 0]
    if not parts:
        return tensors[0].new_empty(0)
    first = parts[0]
    axis = check_axis(OP, dim, first.dim())
    for x in parts:
        if x.dim() != first.dim() or any(n != first.shape[d] for d, n in enumerate(x.shape) if d != axis):
            raise KernelError(
                f"{OP}: the shapes of the tensors do not go together",
                got=f"{list(first.shape)} and {list(x.shape)}",
                expected=f"equal sizes in every dimension but {axis}",
            )
    shape = list(first.shape)
    shape[axis] = sum(x.shape[axis] for x in parts)
    formats = {memory_format(x) for x in parts}
    order = torch.channels_last if formats == {torch.channels_last} else torch.contiguous_format
    return torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=order)


define(
    "cat(Tensor[] tensors, float[] scales, int[] zero_points, int dim, float scale, int zero_point, int quant_min, "
    "int quant_max) -> Tensor",
    reference=reference,
    fake=empty_joined,
)
