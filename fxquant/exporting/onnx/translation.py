"""One row for each operator of ``quantized_decomposed``: what it is in ONNX."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from fxquant.exporting.onnx.extras import onnx_ir, onnxscript

DTYPES = {
    (0, 2**8 - 1): "UINT8",
    (-(2**7), 2**7 - 1): "INT8",
    (0, 2**16 - 1): "UINT16",
    (-(2**15), 2**15 - 1): "INT16",
}
"""First and last integer of each type that a quantize can give -> the name of the type in ONNX."""


def integer_type(quant_min: int, quant_max: int, is_signed: bool) -> tuple[str, bool]:
    """Return the smallest type that holds all integers, and whether they are all that it holds."""
    for (low, high), name in DTYPES.items():
        if is_signed == (low < 0) and low <= quant_min and quant_max <= high:
            return name, (low, high) == (quant_min, quant_max)
    raise AssertionError(f"no type holds [{quant_min}, {quant_max}]")  # no scheme has more than 16 bits


def _as_function(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method: the exporter keeps a signature as an attribute of what it calls, which methods do not have."""

    @functools.wraps(method)
    def translate(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return translate


class Translation:
    """Functions that ``torch.onnx.export`` calls for the operators, with numbers as they stand in the graph."""

    def __init__(self, opset: int) -> None:
        self.ir = onnx_ir()
        self.op = getattr(onnxscript(), f"opset{opset}")

    def table(self) -> dict[Any, Callable[..., Any]]:
        """Operator -> its translation."""
        operators = torch.ops.quantized_decomposed
        methods: dict[Any, Callable[..., Any]] = {
            operators.quantize_per_tensor.default: self.quantize_per_tensor,
            operators.dequantize_per_tensor.default: self.dequantize_per_tensor,
            operators.quantize_per_channel.default: self.quantize_per_channel,
            operators.dequantize_per_channel.default: self.dequantize_per_channel,
            operators.dequantize_per_channel_group.default: self.dequantize_per_channel_group,
            operators.choose_qparams.tensor: self.choose_qparams,
            operators.quantize_per_tensor.tensor: self.quantize_by_tensor,
            operators.dequantize_per_tensor.tensor: self.dequantize_by_tensor,
        }
        return {operator: _as_function(method) for operator, method in methods.items()}

    def quantize_per_tensor(
        self, x: Any, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: Any
    ) -> Any:
        """``QuantizeLinear``, and ``Clip`` on the integers where there are fewer than the type holds."""
        kind, is_full = integer_type(quant_min, quant_max, self._is_signed(dtype))
        q = self.op.QuantizeLinear(self._float(x), self._number(scale, "FLOAT"), self._number(zero_point, kind))
        return q if is_full else self._clip(q, quant_min, quant_max, kind)

    def dequantize_per_tensor(
        self,
        q: Any,
        scale: float,
        zero_point: int,
        quant_min: int,
        quant_max: int,
        dtype: Any,
        *,
        out_dtype: Any = None,
    ) -> Any:
        """``DequantizeLinear``."""
        kind, _ = integer_type(quant_min, quant_max, self._is_signed(dtype))
        x = self.op.DequantizeLinear(q, self._number(scale, "FLOAT"), self._number(zero_point, kind))
        return self._as(x, out_dtype)

    def quantize_per_channel(
        self, x: Any, scales: Any, zero_points: Any, axis: int, quant_min: int, quant_max: int, dtype: Any
    ) -> Any:
        """Do the same with a scale for each index of ``axis``."""
        kind, is_full = integer_type(quant_min, quant_max, self._is_signed(dtype))
        integers = self.op.Cast(zero_points, to=self.ir.DataType[kind])
        q = self.op.QuantizeLinear(self._float(x), scales, integers, axis=axis)
        return q if is_full else self._clip(q, quant_min, quant_max, kind)

    def dequantize_per_channel(
        self,
        q: Any,
        scales: Any,
        zero_points: Any,
        axis: int,
        quant_min: int,
        quant_max: int,
        dtype: Any,
        *,
        out_dtype: Any = None,
    ) -> Any:
        """``DequantizeLinear`` along ``axis``."""
        kind, _ = integer_type(quant_min, quant_max, self._is_signed(dtype))
        points = () if zero_points is None else (self.op.Cast(zero_points, to=self.ir.DataType[kind]),)
        return self._as(self.op.DequantizeLinear(q, scales, *points, axis=axis), out_dtype)

    def dequantize_per_channel_group(
        self,
        q: Any,
        scales: Any,
        zero_points: Any,
        quant_min: int,
        quant_max: int,
        dtype: Any,
        group_size: int,
        output_dtype: Any,
    ) -> Any:
        """``DequantizeLinear`` in blocks along the rows of a matrix."""
        kind, _ = integer_type(quant_min, quant_max, self._is_signed(dtype))
        points = () if zero_points is None else (self.op.Cast(zero_points, to=self.ir.DataType[kind]),)
        return self._as(self.op.DequantizeLinear(q, scales, *points, axis=1, block_size=group_size), output_dtype)

    def choose_qparams(self, x: Any, quant_min: int, quant_max: int, eps: float, dtype: Any) -> Any:
        """Scale and zero point of ``DynamicQuantizeLinear``, which measures uint8 alone."""
        _, scale, zero_point = self.op.DynamicQuantizeLinear(self._float(x))
        return scale, zero_point

    def quantize_by_tensor(
        self, x: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: Any
    ) -> Any:
        """Quantize by qparams that are computed."""
        return self.op.QuantizeLinear(self._float(x), scale, zero_point)

    def dequantize_by_tensor(
        self,
        q: Any,
        scale: Any,
        zero_point: Any,
        quant_min: int,
        quant_max: int,
        dtype: Any,
        *,
        out_dtype: Any = None,
    ) -> Any:
        """Dequantize by qparams that are computed."""
        return self._as(self.op.DequantizeLinear(q, scale, zero_point), out_dtype)

    def _is_signed(self, dtype: Any) -> bool:
        """Whether integers of a dtype of torch are signed; int32 holds uint16."""
        return self.ir.DataType(dtype) in (self.ir.DataType.INT8, self.ir.DataType.INT16)

    def _number(self, value: float, kind: str) -> Any:
        return self.op.Constant(value=self.ir.tensor(value, dtype=self.ir.DataType[kind]))

    def _clip(self, q: Any, low: int, high: int, kind: str) -> Any:
        return self.op.Clip(q, self._number(low, kind), self._number(high, kind))

    def _float(self, x: Any) -> Any:
        return x if x.dtype in (None, self.ir.DataType.FLOAT) else self.op.Cast(x, to=self.ir.DataType.FLOAT)

    def _as(self, x: Any, dtype: Any) -> Any:
        if dtype is None or self.ir.DataType(dtype) == self.ir.DataType.FLOAT:
            return x
        return self.op.Cast(x, to=self.ir.DataType(dtype))
