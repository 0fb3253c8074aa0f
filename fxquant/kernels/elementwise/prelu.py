"""``fxquant::prelu``: a leaky ReLU with a slope per channel, requantized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import RequantizingCall, check_qparams, check_stored, float32
from fxquant.kernels.call import define_operator
from fxquant.kernels.checks import check_dtype


@dataclass(eq=False, repr=False)
class PReluCall(RequantizingCall):
    """Multiply what lies below 0 by its channel's slope, and requantize the result.

    ``r = float(q - x_zero_point) * x_scale``; where ``r < 0``, ``r = r * slope``; then
    ``q = clamp(round(r * (1 / scale)) + zero_point, quant_min, quant_max)``, ties to even; each step in float32.

    Returns:
        The dtype, shape and memory layout of ``x``.

    Source:
        He et al., "Delving Deep into Rectifiers", arXiv:1502.01852, eq. 1.
    """

    op: ClassVar[str] = "fxquant::prelu"

    x: Tensor
    """uint8 or int8, any shape."""
    x_scale: float
    """Scale of ``x``, rounded to float32 first."""
    x_zero_point: int
    """Zero point, inside the range of the dtype."""
    slope: Tensor
    """float32, broadcasts to ``x``: [C, 1, 1] for images."""
    scale: float
    zero_point: int
    quant_min: int
    """Smallest integer of the output, inside the range of the dtype."""
    quant_max: int
    """Largest integer of the output."""

    def empty_result(self) -> Tensor:
        check_stored(self.op, "x", self.x)
        check_dtype(self.op, "slope", self.slope, (torch.float32,))
        check_qparams(self.op, "x_", self.x_scale, self.x_zero_point, self.x.dtype)
        self.check_output(self.x.dtype)
        own = self.x.shape[self.x.dim() - self.slope.dim() :] if self.slope.dim() <= self.x.dim() else ()
        if len(own) != self.slope.dim() or any(
            size not in (1, wanted) for size, wanted in zip(self.slope.shape, own, strict=True)
        ):
            raise KernelError(
                f"{self.op}: slope does not broadcast to x",
                got=f"{list(self.slope.shape)} and {list(self.x.shape)}",
                expected="sizes that are equal or 1, from the last dimension on",
            )
        return torch.empty_like(self.x)

    def reference(self) -> Tensor:
        y = self.empty_result()
        real = (self.x.to(torch.int32) - self.x_zero_point).to(torch.float32) * float32(self.x_scale)
        real = torch.where(real < 0, real * self.slope, real)
        return y.copy_(self.requantize(real, self.x.dtype))


prelu, reference = define_operator(PReluCall)
