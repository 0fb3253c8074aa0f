"""``fxquant::dequantize``: from quantized values to float values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.kernels.call import Call, define_operator
from fxquant.kernels.checks import check_dtype
from fxquant.kernels.layout import like
from fxquant.kernels.quantize.qparams import INTEGERS, along, as_tensors, check_along, scale_values, zero_point_values


@dataclass(eq=False, repr=False)
class DequantizeCall(Call[Tensor]):
    """Map quantized values to the float values they stand for: ``(q - zero_point) * scale``.

    Returns:
        float32 of the shape and memory format of ``q``. The difference is exact, then made a float32; the product
        is rounded once.

    Raises:
        RuntimeError: dtype, shape, axis or device do not fit; the message names the argument.

    Source:
        Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
        arXiv:1712.05877, eq. 1.
    """

    op: ClassVar[str] = "fxquant::dequantize"

    q: Tensor
    """uint8, int8, int16 or int32, any shape and strides."""
    scale: Tensor
    """[C] or [] of any floating dtype; rounded to float32. C is 1 if ``axis`` is None, else ``q.shape[axis]``."""
    zero_point: Tensor
    """[C] or [] of any integer dtype, or of a floating one with integral values."""
    axis: int | None = None
    """The dimension whose every index has its own scale and zero point; negative ones count from the end."""

    def check(self) -> int | None:
        """Check the arguments, and return the axis counted from the first dimension."""
        check_dtype(self.op, "q", self.q, INTEGERS)
        return check_along(self.op, self.q, self.scale, self.zero_point, self.axis)

    def empty_result(self) -> Tensor:
        self.check()
        return torch.empty_like(self.q, dtype=torch.float32)

    def reference(self) -> Tensor:
        axis = self.check()
        difference = self.q.long() - along(zero_point_values(self.op, self.zero_point), self.q, axis)
        return like(self.q, difference.float() * along(scale_values(self.scale), self.q, axis))


_dequantize, reference = define_operator(DequantizeCall)


def dequantize(q: Tensor, scale: Tensor | float, zero_point: Tensor | int, axis: int | None = None) -> Tensor:
    """Dequantize as :class:`DequantizeCall` says; ``scale`` and ``zero_point`` may be numbers too."""
    scale, zero_point = as_tensors(q, scale, zero_point)
    return _dequantize(q, scale, zero_point, axis)
