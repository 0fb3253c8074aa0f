"""``fxquant::cat``: int8 tensors joined, with one scale and zero point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import (
    RequantizingCall,
    check_qparams,
    check_same_dtype,
    check_stored,
    float32,
)
from fxquant.kernels.call import define_operator
from fxquant.kernels.checks import check_axis
from fxquant.kernels.pool.windows import memory_format


@dataclass(eq=False, repr=False)
class CatCall(RequantizingCall):
    """Join tensors of quantized values along ``dim``, requantized to the output's qparams.

    An input that has these qparams already is copied, another one is requantized element by element:
    ``q = clamp(round(float(qi - zi) * si * (1 / scale)) + zero_point, quant_min, quant_max)`` in float32, each step
    rounded, ties to even. (Copying is no second rule: with equal qparams the formula returns its input.)

    Returns:
        The dtype of the inputs; channels_last if every input is, else contiguous.
    """

    op: ClassVar[str] = "fxquant::cat"

    tensors: Sequence[Tensor]
    """uint8 or int8, all of one dtype; of one shape but for ``dim``. One-dimensional tensors without an element are
    left out, as ``torch.cat`` does."""
    scales: Sequence[float]
    """Scales, one per tensor, rounded to float32 first."""
    zero_points: Sequence[int]
    """Zero points, one per tensor, inside the range of the dtype."""
    dim: int
    """Dimension to join along; negative counts from the end."""
    scale: float
    zero_point: int
    quant_min: int
    """Smallest integer of the output, inside the range of the dtype."""
    quant_max: int
    """Largest integer of the output."""

    def empty_result(self) -> Tensor:
        # Check the tensors and their qparams.
        if not self.tensors or not len(self.tensors) == len(self.scales) == len(self.zero_points):
            raise KernelError(
                f"{self.op}: tensors, scales and zero_points do not go together",
                got=f"{len(self.tensors)}, {len(self.scales)} and {len(self.zero_points)} of them",
                expected="as many of each, and at least one",
            )
        for index, (x, s, z) in enumerate(zip(self.tensors, self.scales, self.zero_points, strict=True)):
            name = f"tensors[{index}]"
            check_stored(self.op, name, x)
            check_same_dtype(self.op, name, x, self.tensors[0])
            check_qparams(self.op, f"{name} ", s, z, x.dtype)
        self.check_output(self.tensors[0].dtype)
        # Check the shapes, of which empty vectors have none.
        parts = [x for x in self.tensors if x.dim() != 1 or x.shape[0] != 0]
        if not parts:
            return self.tensors[0].new_empty(0)
        first = parts[0]
        axis = check_axis(self.op, self.dim, first.dim())
        for x in parts:
            if x.dim() != first.dim() or any(n != first.shape[d] for d, n in enumerate(x.shape) if d != axis):
                raise KernelError(
                    f"{self.op}: the shapes of the tensors do not go together",
                    got=f"{list(first.shape)} and {list(x.shape)}",
                    expected=f"equal sizes in every dimension but {axis}",
                )
        # The result is channels_last where all parts are.
        shape = list(first.shape)
        shape[axis] = sum(x.shape[axis] for x in parts)
        formats = {memory_format(x) for x in parts}
        order = torch.channels_last if formats == {torch.channels_last} else torch.contiguous_format
        return torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=order)

    def reference(self) -> Tensor:
        y = self.empty_result()
        parts = [
            self.requantize((x.to(torch.int32) - z).to(torch.float32) * float32(s), x.dtype)
            for x, s, z in zip(self.tensors, self.scales, self.zero_points, strict=True)
        ]
        return y.copy_(torch.cat(parts, self.dim))


cat, reference = define_operator(CatCall)
