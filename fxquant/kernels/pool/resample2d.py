"""``fxquant::resample2d``: weighted sums of neighbours along rows and columns. Schema, reference, shape function."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import check_output, check_qparams, check_stored, float32, requantize
from fxquant.kernels.checks import check_dtype
from fxquant.kernels.library import define
from fxquant.kernels.pool.windows import check_image, empty_output

OP = "fxquant::resample2d"


def resample2d(
    x: Tensor,
    row_start: Tensor,
    row_weight: Tensor,
    column_start: Tensor,
    column_weight: Tensor,
    x_scale: float,
    x_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Resize images of stored integers by any separable rule (bilinear, bicubic, with or without anti-aliasing).

    ``v = float(q - x_zero_point)``; ``t = sum_k row_weight[k] * v[row_start + k]`` for each column; then
    ``s = sum_k column_weight[k] * t[column_start + k]``; ``r = s * x_scale`` and
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even. Each step in float32, the
    sums from the first weight to the last.

    Args:
        x: uint8 or int8 [N, C, H, W] or [C, H, W]; N may be 0.
        row_start: int64 [OH], the first row that an output row reads; 0 to H - K.
        row_weight: float32 [OH, K], K at most H.
        column_start: int64 [OW], as ``row_start``.
        column_weight: float32 [OW, L], as ``row_weight``.
        x_scale: Real units per step of ``x``, rounded to float32 first.
        x_zero_point: In steps, inside the range of the dtype.
        scale: Of the output.
        zero_point: Of the output.
        quant_min: Smallest integer of the output, inside the range of the dtype.
        quant_max: Largest integer of the output.

    Returns:
        The dtype of ``x``, [N, C, OH, OW] or [C, OH, OW]; channels_last if ``x`` is, else contiguous.

    Raises:
        RuntimeError: a dtype, shape or grid is not as above, or (on the CPU) a start; the message names the argument.
    """
    return torch.ops.fxquant.resample2d.default(
        x,
        row_start,
        row_weight,
        column_start,
        column_weight,
        x_scale,
        x_zero_point,
        scale,
        zero_point,
        quant_min,
        quant_max,
    )


def reference(
    x: Tensor,
    row_start: Tensor,
    row_weight: Tensor,
    column_start: Tensor,
    column_weight: Tensor,
    x_scale: float,
    x_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """The oracle of the tests, and the kernel of devices that have no native one."""
    axes = ((row_start, row_weight), (column_start, column_weight))
    y = empty_result(
        x,
        row_start,
        row_weight,
        column_start,
        column_weight,
        x_scale,
        x_zero_point,
        scale,
        zero_point,
        quant_min,
        quant_max,
    )
    values = (x.to(torch.int32) - x_zero_point).to(torch.float32)
    for axis, name, (start, weight) in zip((-2, -1), ("row", "column"), axes, strict=True):
        _check_starts(name, start, x.shape[axis] - weight.shape[1])
        shape = [-1, 1] if axis == -2 else [-1]
        terms = (values.index_select(axis, start + k) * weight[:, k].reshape(shape) for k in range(weight.shape[1]))
        values = _in_order(terms)
    return y.copy_(requantize(values * float32(x_scale), scale, zero_point, quant_min, quant_max, x.dtype))


def _in_order(terms: Iterable[Tensor]) -> Tensor:
    first, *others = terms
    for term in others:
        first = first + term
    return first


def empty_result(
    x: Tensor,
    row_start: Tensor,
    row_weight: Tensor,
    column_start: Tensor,
    column_weight: Tensor,
    x_scale: float,
    x_zero_point: int,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Check the arguments; an empty tensor of the result's shape, dtype and layout."""
    check_stored(OP, "x", x)
    check_qparams(OP, "x_", x_scale, x_zero_point, x.dtype)
    check_output(OP, scale, zero_point, quant_min, quant_max, x.dtype)
    check_image(OP, x)
    _check_axis("row", row_start, row_weight, x.shape[-2])
    _check_axis("column", column_start, column_weight, x.shape[-1])
    return empty_output(x, len(row_start), len(column_start))


def _check_axis(name: str, start: Tensor, weight: Tensor, size: int) -> None:
    check_dtype(OP, f"{name}_start", start, (torch.int64,))
    check_dtype(OP, f"{name}_weight", weight, (torch.float32,))
    fits = start.dim() == 1 and weight.dim() == 2 and len(start) == len(weight) and 1 <= weight.shape[1] <= size
    if not fits:
        raise KernelError(
            f"{OP}: {name}_start and {name}_weight do not fit",
            got=f"{list(start.shape)} and {list(weight.shape)}",
            expected=f"[n] and [n, k], with k from 1 to {size}",
        )


def _check_starts(name: str, start: Tensor, largest: int) -> None:
    if len(start) and not 0 <= int(start.min()) <= int(start.max()) <= largest:
        raise KernelError(
            f"{OP}: {name}_start is out of range",
            got=f"{int(start.min())} to {int(start.max())}",
            expected=f"0 to {largest}",
        )


define(
    "resample2d(Tensor x, Tensor row_start, Tensor row_weight, Tensor column_start, Tensor column_weight, "
    "float x_scale, int x_zero_point, float scale, int zero_point, int quant_min, int quant_max) -> Tensor",
    reference=reference,
    fake=empty_result,
)
