"""Operators on quantized tensors. Importing this defines ``torch.ops.fxquant.*`` and loads the native kernels."""

from fxquant.kernels.dequantize import dequantize
from fxquant.kernels.library import NativeStatus, native_status

__all__ = ["NativeStatus", "dequantize", "native_status"]
