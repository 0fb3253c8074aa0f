"""``fxquant::resample2d``: weighted sums of neighbours along rows and columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import RequantizingCall, check_qparams, check_stored, float32
from fxquant.kernels.call import define_operator
from fxquant.kernels.checks import check_dtype
from fxquant.kernels.pool.windows import check_image, empty_output

OP = "fxquant::resample2d"


@dataclass(eq=False, repr=False)
class Resample2dCall(RequantizingCall):
    """Resize images of quantized values by any separable rule (bilinear, bicubic, with or without anti-aliasing).

    ``v = float(q - x_zero_point)``; ``t = sum_k row_weight[k] * v[row_start + k]`` for each column; then
    ``s = sum_k column_weight[k] * t[column_start + k]``; ``r = s * x_scale`` and
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even. Each step in float32, the
    sums from the first weight to the last.

    Returns:
        The dtype of ``x``, [N, C, OH, OW] or [C, OH, OW]; channels_last if ``x`` is, else contiguous.
    """

    op: ClassVar[str] = OP

    x: Tensor
    """uint8 or int8 [N, C, H, W] or [C, H, W]; N may be 0."""
    row_start: Tensor
    """int64 [OH], the first row that an output row reads; 0 to H - K."""
    row_weight: Tensor
    """float32 [OH, K], K at most H."""
    column_start: Tensor
    """int64 [OW], as ``row_start``."""
    column_weight: Tensor
    """float32 [OW, L], as ``row_weight``."""
    x_scale: float
    """Scale of ``x``, rounded to float32 first."""
    x_zero_point: int
    """Zero point, inside the range of the dtype."""
    scale: float
    zero_point: int
    quant_min: int
    """Smallest integer of the output, inside the range of the dtype."""
    quant_max: int
    """Largest integer of the output."""

    def empty_result(self) -> Tensor:
        check_stored(self.op, "x", self.x)
        check_qparams(self.op, "x_", self.x_scale, self.x_zero_point, self.x.dtype)
        self.check_output(self.x.dtype)
        check_image(self.op, self.x)
        _check_axis("row", self.row_start, self.row_weight, self.x.shape[-2])
        _check_axis("column", self.column_start, self.column_weight, self.x.shape[-1])
        return empty_output(self.x, len(self.row_start), len(self.column_start))

    def reference(self) -> Tensor:
        axes = ((self.row_start, self.row_weight), (self.column_start, self.column_weight))
        y = self.empty_result()
        values = (self.x.to(torch.int32) - self.x_zero_point).to(torch.float32)
        for axis, name, (start, weight) in zip((-2, -1), ("row", "column"), axes, strict=True):
            _check_starts(name, start, self.x.shape[axis] - weight.shape[1])
            shape = [-1, 1] if axis == -2 else [-1]
            terms = (values.index_select(axis, start + k) * weight[:, k].reshape(shape) for k in range(weight.shape[1]))
            values = _in_order(terms)
        return y.copy_(self.requantize(values * float32(self.x_scale), self.x.dtype))


def _in_order(terms: Iterable[Tensor]) -> Tensor:
    first, *others = terms
    for term in others:
        first = first + term
    return first


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


resample2d, reference = define_operator(Resample2dCall)
