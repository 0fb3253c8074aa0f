"""``fxquant::mean``: the mean over some dimensions, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import AveragingCall
from fxquant.kernels.call import define_operator
from fxquant.kernels.checks import check_axis
from fxquant.kernels.pool.windows import memory_format

OP = "fxquant::mean"


@dataclass(eq=False, repr=False)
class MeanCall(AveragingCall):
    """Average quantized values over the dimensions ``dim``, and requantize the mean.

    The sum of ``q - x_zero_point`` is exact. Then in float32, each step rounded:
    ``r = float(sum) * (x_scale / float(count))`` and
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even. The mean of no element is
    NaN, which becomes ``quant_min``.

    Returns:
        The dtype of ``x``; contiguous, or channels_last where ``keepdim`` and ``x`` is.
    """

    op: ClassVar[str] = OP

    x: Tensor
    """uint8 or int8, any shape."""
    dim: Sequence[int]
    """Dimensions to average over, each once; negative ones count from the end; empty: all of them."""
    keepdim: bool
    """Whether they stay, with size 1."""
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
        self.check_average()
        reduced = reduced_dims(self.x, self.dim)
        if not self.keepdim:
            return self.x.new_empty([size for d, size in enumerate(self.x.shape) if d not in reduced])
        shape = [1 if d in reduced else size for d, size in enumerate(self.x.shape)]
        return torch.empty(shape, dtype=self.x.dtype, device=self.x.device, memory_format=memory_format(self.x))

    def reference(self) -> Tensor:
        y = self.empty_result()
        if y.numel() == 0:
            return y
        reduced = reduced_dims(self.x, self.dim)
        values = self.x.to(torch.int64) - self.x_zero_point
        sums = values.sum(reduced, self.keepdim) if reduced else values
        count = torch.tensor([self.x.shape[d] for d in reduced], dtype=torch.int64, device=self.x.device).prod()
        return y.copy_(self.average(sums, count))


def reduced_dims(x: Tensor, dim: Sequence[int]) -> list[int]:
    """Return the dimensions of ``dim`` as numbers from 0, in order; all of them if ``dim`` is empty."""
    reduced = sorted({check_axis(OP, d, x.dim()) for d in dim}) if x.dim() else []
    if x.dim() and len(reduced) != len(dim):
        raise KernelError(f"{OP}: dim names a dimension twice", got=list(dim), expected="each at most once")
    return reduced or list(range(x.dim()))


mean, reference = define_operator(MeanCall)
