"""The modules that a converted graph calls. Their state is plain int8 and float tensors in buffers."""

from fxquant.nn.base import QuantizedModule
from fxquant.nn.batch_norm import QuantizedBatchNorm
from fxquant.nn.conv import QuantizedConv
from fxquant.nn.conv_transpose import QuantizedConvTranspose
from fxquant.nn.elementwise import QuantizedAdd, QuantizedCat, QuantizedMul, QuantizedStack, QuantizedSub
from fxquant.nn.embedding import QuantizedEmbedding, QuantizedEmbeddingBag
from fxquant.nn.linear import QuantizedLinear
from fxquant.nn.moves import QuantizedZeroPad
from fxquant.nn.pool import QuantizedAdaptiveAvgPool2d, QuantizedAvgPool2d, QuantizedMaxPool2d, QuantizedMean
from fxquant.nn.quantize import Dequantize, Quantize, Requantize
from fxquant.nn.table import ElementFunction, QuantizedTable

__all__ = [
    "Dequantize",
    "ElementFunction",
    "Quantize",
    "QuantizedAdaptiveAvgPool2d",
    "QuantizedAdd",
    "QuantizedAvgPool2d",
    "QuantizedBatchNorm",
    "QuantizedCat",
    "QuantizedConv",
    "QuantizedConvTranspose",
    "QuantizedEmbedding",
    "QuantizedEmbeddingBag",
    "QuantizedLinear",
    "QuantizedMaxPool2d",
    "QuantizedMean",
    "QuantizedModule",
    "QuantizedMul",
    "QuantizedStack",
    "QuantizedSub",
    "QuantizedTable",
    "QuantizedZeroPad",
    "Requantize",
]
