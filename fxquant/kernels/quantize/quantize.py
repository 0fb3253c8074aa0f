"""``fxquant::quantize``: from float values to quantized values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.call import Call, define_operator
from fxquant.kernels.checks import check_dtype, check_limits
from fxquant.kernels.layout import like
from fxquant.kernels.quantize.affine import FLOATS, make_affine_qparams
from fxquant.kernels.quantize.qparams import INTEGERS, as_tensors, check_along, scale_values, zero_point_values


@dataclass(eq=False, repr=False)
class QuantizeCall(Call[Tensor]):
    """Quantize float values: ``clamp(round(x * (1 / scale)) + zero_point, quant_min, quant_max)``.

    Rounding is to nearest, ties to even, and comes before the zero point is added. NaN becomes ``quant_min``;
    infinities saturate. An activation that clamps (ReLU, ReLU6) is nothing but narrower limits.

    Returns:
        ``dtype``, of the shape of ``x``, in its memory format unless ``channels_last``.

    Raises:
        RuntimeError: dtype, shape, axis, limits or device do not fit; the message names the argument.

    Source:
        Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
        arXiv:1712.05877, eq. 1 solved for q; ONNX QuantizeLinear, but for ``x * (1 / scale)`` instead of ``x / scale``.
    """

    op: ClassVar[str] = "fxquant::quantize"

    x: Tensor
    """float32, float64, float16 or bfloat16, any shape and strides. Only float64 is computed in float64."""
    scale: Tensor
    """[C] or [] of any floating dtype, > 0; rounded to float32. C is 1 if ``axis`` is None, else ``x.shape[axis]``."""
    zero_point: Tensor
    """[C] or [] of any integer dtype, or of a floating one with integral values. It may lie outside the limits."""
    quant_min: int
    """Smallest quantized value, within the range of ``dtype``."""
    quant_max: int
    """Largest quantized value."""
    dtype: torch.dtype
    """uint8, int8, int16 or int32. Beyond 2^24 only integers that are float32 numbers occur."""
    axis: int | None = None
    """The dimension whose every index has its own scale and zero point; negative ones count from the end."""
    channels_last: bool = False
    """True: a 4-dimensional result has that memory format, whatever that of ``x`` is. It is quicker than converting."""

    def check(self) -> int | None:
        """Check the arguments, and return the axis counted from the first dimension."""
        check_dtype(self.op, "x", self.x, FLOATS)
        check_dtype(self.op, "dtype", self.dtype, INTEGERS)
        check_limits(self.op, self.quant_min, self.quant_max, self.dtype)
        if self.channels_last and self.x.dim() != 4:
            raise KernelError(
                f"{self.op}: channels_last is for images only",
                got=f"{self.x.dim()} dimensions",
                expected="4: [N, C, H, W]",
            )
        return check_along(self.op, self.x, self.scale, self.zero_point, self.axis)

    def empty_result(self) -> Tensor:
        self.check()
        memory_format = torch.channels_last if self.channels_last else torch.preserve_format
        return torch.empty_like(self.x, dtype=self.dtype, memory_format=memory_format)

    def reference(self) -> Tensor:
        axis = self.check()
        scale, zero_point = scale_values(self.scale), zero_point_values(self.op, self.zero_point)
        qparams = make_affine_qparams(self.op, "x", self.x, scale, zero_point, axis, self.quant_min, self.quant_max)
        q = qparams.saturate(qparams.round_to_quantized(self.x)).to(torch.int32).to(self.dtype)
        if self.channels_last:
            return torch.empty_like(q, memory_format=torch.channels_last).copy_(q)
        return like(self.x, q)


_quantize, reference = define_operator(QuantizeCall)


def quantize(
    x: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    axis: int | None = None,
    channels_last: bool = False,
) -> Tensor:
    """Quantize float values as :class:`QuantizeCall` says; ``scale`` and ``zero_point`` may be numbers too."""
    scale, zero_point = as_tensors(x, scale, zero_point)
    return _quantize(x, scale, zero_point, quant_min, quant_max, dtype, axis, channels_last)
