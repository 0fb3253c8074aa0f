"""The modules that a converted graph calls. Their state is plain int8 and float tensors in buffers."""

from fxquant.nn.base import QuantizedModule
from fxquant.nn.conv import QuantizedConv
from fxquant.nn.linear import QuantizedLinear
from fxquant.nn.quantize import Dequantize, Quantize, Requantize

__all__ = ["Dequantize", "Quantize", "QuantizedConv", "QuantizedLinear", "QuantizedModule", "Requantize"]
