"""The modules that a converted graph calls. Their state is plain int8 and float tensors in buffers."""

from fxquant.nn.base import QuantizedModule

__all__ = ["QuantizedModule"]
