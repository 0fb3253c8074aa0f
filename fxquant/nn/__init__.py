"""The modules that a converted graph calls. Their state is plain int8 and float tensors in buffers."""

from fxquant.graph.recurrent import RecurrentShape
from fxquant.nn.avg_pool import (
    QuantizedAdaptiveAvgPool1d,
    QuantizedAdaptiveAvgPool2d,
    QuantizedAdaptiveAvgPool3d,
    QuantizedAvgPool1d,
    QuantizedAvgPool2d,
    QuantizedAvgPool3d,
    QuantizedMean,
    QuantizedSum,
)
from fxquant.nn.base import QuantizedModule
from fxquant.nn.batch_norm import QuantizedBatchNorm
from fxquant.nn.conv import QuantizedConv
from fxquant.nn.conv_transpose import QuantizedConvTranspose
from fxquant.nn.elementwise import (
    QuantizedAdd,
    QuantizedCat,
    QuantizedMaximum,
    QuantizedMul,
    QuantizedPReLU,
    QuantizedStack,
    QuantizedSub,
)
from fxquant.nn.embedding import QuantizedEmbedding, QuantizedEmbeddingBag
from fxquant.nn.linear import QuantizedDynamicLinear, QuantizedLinear
from fxquant.nn.matmul import QuantizedMatmul
from fxquant.nn.max_pool import QuantizedMaxPool2d, QuantizedMaxValues
from fxquant.nn.norm import QuantizedLayerNorm, QuantizedSoftmax
from fxquant.nn.quantize import Dequantize, Quantize, Requantize
from fxquant.nn.quantized_recurrent import QuantizedRecurrent
from fxquant.nn.shape import QuantizedInterpolate, QuantizedPad
from fxquant.nn.table import ElementFunction, QuantizedFunction, QuantizedTable
from fxquant.nn.weight_only import QuantizedWeightOnlyLinear

__all__ = [
    "Dequantize",
    "ElementFunction",
    "Quantize",
    "QuantizedAdaptiveAvgPool1d",
    "QuantizedAdaptiveAvgPool2d",
    "QuantizedAdaptiveAvgPool3d",
    "QuantizedAdd",
    "QuantizedAvgPool1d",
    "QuantizedAvgPool2d",
    "QuantizedAvgPool3d",
    "QuantizedBatchNorm",
    "QuantizedCat",
    "QuantizedConv",
    "QuantizedConvTranspose",
    "QuantizedDynamicLinear",
    "QuantizedEmbedding",
    "QuantizedEmbeddingBag",
    "QuantizedFunction",
    "QuantizedInterpolate",
    "QuantizedLayerNorm",
    "QuantizedLinear",
    "QuantizedMatmul",
    "QuantizedMaxPool2d",
    "QuantizedMaxValues",
    "QuantizedMaximum",
    "QuantizedMean",
    "QuantizedModule",
    "QuantizedMul",
    "QuantizedPReLU",
    "QuantizedPad",
    "QuantizedRecurrent",
    "QuantizedSoftmax",
    "QuantizedStack",
    "QuantizedSub",
    "QuantizedSum",
    "QuantizedTable",
    "QuantizedWeightOnlyLinear",
    "RecurrentShape",
    "Requantize",
]
