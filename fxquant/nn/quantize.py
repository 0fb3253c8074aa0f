"""Quantize, dequantize, and requantize from one tensor's qparams to another's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.errors import InputError
from fxquant.kernels import dequantize, quantize, table
from fxquant.kernels.quantize.dequantize import reference as dequantize_reference
from fxquant.kernels.quantize.quantize import reference as quantize_reference
from fxquant.nn.base import FloatResult, QuantizedModule
from fxquant.plan.spec import QParams

IMAGE_RANK = 4


class Quantize(QuantizedModule):
    """Float values to quantized values: ``clamp(round(x * (1 / scale)) + zero_point, quant_min, quant_max)``.

    Args:
        qparams: Qparams of the result, role ``y``.
        channels_last: Give [N, C, H, W] results in channels_last order, in the same pass.

    Shape:
        Floating point of any shape; the result is an integer tensor of that shape, of the dtype of the scheme.
    """

    def __init__(self, qparams: QParams, channels_last: bool = False) -> None:
        super().__init__()
        self.add_qparams("y", qparams)
        self.channels_last = channels_last

    def pack(self) -> dict[str, Any]:
        return quantize_arguments(self.qparams("y"))

    def forward(self, x: Tensor) -> Tensor:
        return quantize(x, **(self._packed or self.packed()), channels_last=self._to_channels_last(x))

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return quantize_reference(x, **self.packed(), channels_last=self._to_channels_last(x))

    def _to_channels_last(self, x: Tensor) -> bool:
        return self.channels_last and x.dim() == IMAGE_RANK

    def extra_repr(self) -> str:
        return super().extra_repr() + (", channels_last=True" if self.channels_last else "")


class Dequantize(QuantizedModule):
    """Quantized values to the float values they stand for: ``(q - zero_point) * scale``.

    Args:
        qparams: Qparams of the input, role ``x``.
        dtype: Of the result, as of ``FloatResult``.
        contiguous: As of ``FloatResult``. It is integers that are moved, where they have to be: a quarter of the bytes.

    Shape:
        Any; memory order is kept unless ``contiguous``.
    """

    float_result: FloatResult

    def __init__(self, qparams: QParams, dtype: torch.dtype = torch.float32, contiguous: bool = False) -> None:
        super().__init__()
        self.add_qparams("x", qparams)
        self.float_result = FloatResult(dtype, contiguous)

    def pack(self) -> dict[str, Any]:
        return dequantize_arguments(self.qparams("x"))

    def forward(self, q: Tensor) -> Tensor:
        if q.dtype != self._schemes["x"].dtype and not q.is_floating_point():  # other integers are other values
            raise self._wrong_dtype(q)
        return dequantize(self._with_memory_format(q), **(self._packed or self.packed())).to(self.float_result.dtype)

    def reference(self, *inputs: Tensor) -> Tensor:
        (q,) = inputs
        return dequantize_reference(self._with_memory_format(q), **self.packed()).to(self.float_result.dtype)

    def _wrong_dtype(self, q: Tensor) -> InputError:
        return InputError(
            "quantized values have another dtype than their qparams",
            at=self.unit or type(self).__name__,
            got=q.dtype,
            expected=self._schemes["x"].dtype,
        )

    def _with_memory_format(self, q: Tensor) -> Tensor:
        return q.contiguous() if self.float_result.contiguous else q


class Requantize(QuantizedModule):
    """Requantizes: gives what dequantizing and quantizing again gives, to the bit.

    Values of at most 8 bits go through a lookup table; wider ones through float32.

    Args:
        x: Qparams of the input.
        y: Qparams of the result.

    Shape:
        Any; memory order is kept.
    """

    def __init__(self, x: QParams, y: QParams) -> None:
        super().__init__()
        self.add_qparams("x", x)
        self.add_qparams("y", y)
        self.by_table = x.scheme.bits <= 8 and y.scheme.bits <= 8 and x.scheme.axis is None and y.scheme.axis is None

    def pack(self) -> tuple[Any, ...]:
        if not self.by_table:
            return dequantize_arguments(self.qparams("x")), quantize_arguments(self.qparams("y"))
        return (self._through_float(every_byte(self.qparams("x"))),)

    def forward(self, q: Tensor) -> Tensor:
        packed = self._packed or self.packed()
        if self.by_table:
            return table(q, packed[0])
        return quantize(dequantize(q, **packed[0]), **packed[1])

    def reference(self, *inputs: Tensor) -> Tensor:
        (q,) = inputs
        self.packed()  # raises where the qparams are unknown
        return self._through_float(q)

    def _through_float(self, q: Tensor) -> Tensor:
        real = dequantize_reference(q, **dequantize_arguments(self.qparams("x")))
        return quantize_reference(real, **quantize_arguments(self.qparams("y")))


def quantize_arguments(y: QParams) -> dict[str, Any]:
    """Return what ``fxquant.kernels.quantize.quantize`` takes beside its input."""
    scheme = y.scheme
    return {
        "scale": y.scale,
        "zero_point": y.zero_point,
        "quant_min": scheme.quant_min,
        "quant_max": scheme.quant_max,
        "dtype": scheme.dtype,
        "axis": scheme.axis,
    }


def dequantize_arguments(x: QParams) -> dict[str, Any]:
    """Return what ``fxquant.kernels.quantize.dequantize`` takes beside its input."""
    return {"scale": x.scale, "zero_point": x.zero_point, "axis": x.scheme.axis}


def every_byte(x: QParams) -> Tensor:
    """Return all 256 quantized values, in the order of their bytes: a lookup table is filled from them."""
    values = torch.arange(256, dtype=torch.int32, device=x.scale.device).to(torch.uint8)
    return values.view(x.scheme.dtype)
