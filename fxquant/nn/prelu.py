"""A PReLU with a slope for each channel, on stored integers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.errors import LoweringError
from fxquant.kernels import prelu
from fxquant.kernels.elementwise.prelu import reference as prelu_reference
from fxquant.nn.base import integer_limits
from fxquant.nn.same_dtype import SameDtypeModule
from fxquant.nn.weight import all_finite
from fxquant.plan.spec import QParams


class QuantizedPReLU(SameDtypeModule):
    """``q_y = quantize(prelu(x, slope))`` of stored integers, in one operator: ``fxquant.kernels.elementwise.prelu``.

    Args:
        slope: float [C], or [1].
        x: Grid of the input; at most 8 bits, per tensor.
        y: Grid of the output.

    Shape:
        uint8 or int8 [N, C, ...], as ``torch.nn.PReLU`` takes it.

    Raises:
        LoweringError: a grid does not fit a byte, a slope is not finite.
    """

    slope: Tensor

    def __init__(self, slope: Tensor, x: QParams, y: QParams) -> None:
        super().__init__()
        if not all_finite(slope):
            raise LoweringError(
                "the slopes hold values that are not finite",
                got=f"{int((~torch.isfinite(slope)).sum())} of {slope.numel()} values are inf or NaN",
                expected="finite slopes",
            )
        self.register_buffer("slope", slope.detach().to(torch.float32).clone())
        self.add_same_dtype_qparams("y", y)
        self.add_same_dtype_qparams("x", x)

    def pack(self) -> tuple[Any, ...]:
        """Both grids, and the limits of the output."""
        return (*self.numbers("x"), *self.numbers("y"), *integer_limits(self.qparams("y"), None))

    def forward(self, x: Tensor) -> Tensor:
        scale, zero_point, *y = self._packed or self.packed()
        return prelu(self.take("x", x), scale, zero_point, self._along(x), *y)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        scale, zero_point, *y = self.packed()
        return prelu_reference(self.take("x", x), scale, zero_point, self._along(x), *y)

    def _along(self, x: Tensor) -> Tensor:
        """The slopes, along the dimension that torch takes for the channels: the second, or the only one."""
        return self.slope if x.dim() < 3 else self.slope.reshape(-1, *[1] * (x.dim() - 2))

    def extra_repr(self) -> str:
        return f"num_parameters={self.slope.numel()}, {super().extra_repr()}"
