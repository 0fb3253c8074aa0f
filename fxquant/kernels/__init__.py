"""Operators on quantized tensors. Importing this defines ``torch.ops.fxquant.*`` and loads the native kernels."""

from fxquant.kernels.adaptive_avg_pool2d import adaptive_avg_pool2d
from fxquant.kernels.add import add
from fxquant.kernels.avg_pool2d import avg_pool2d
from fxquant.kernels.cachemask import (
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams,
    fake_quantize_per_channel_affine_cachemask,
    fake_quantize_per_channel_affine_cachemask_backward,
    fake_quantize_per_tensor_affine_cachemask,
    fake_quantize_per_tensor_affine_cachemask_backward,
)
from fxquant.kernels.cat import cat
from fxquant.kernels.conv2d import conv2d
from fxquant.kernels.conv3d import conv3d
from fxquant.kernels.dequantize import dequantize
from fxquant.kernels.embedding import embedding
from fxquant.kernels.embedding_bag import embedding_bag
from fxquant.kernels.fake_quantize import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine
from fxquant.kernels.fake_quantize_learnable import (
    _fake_quantize_learnable_per_channel_affine,
    _fake_quantize_learnable_per_channel_affine_backward,
    _fake_quantize_learnable_per_tensor_affine,
    _fake_quantize_learnable_per_tensor_affine_backward,
    fake_quantize_learnable_per_channel_affine,
    fake_quantize_learnable_per_channel_affine_backward,
    fake_quantize_learnable_per_tensor_affine,
    fake_quantize_learnable_per_tensor_affine_backward,
)
from fxquant.kernels.fused_moving_avg_obs_fake_quant import fused_moving_avg_obs_fake_quant
from fxquant.kernels.histogram import histogram
from fxquant.kernels.layer_norm import layer_norm
from fxquant.kernels.library import NativeStatus, native_status
from fxquant.kernels.linear import linear
from fxquant.kernels.matmul import matmul
from fxquant.kernels.max_pool2d import max_pool2d
from fxquant.kernels.mean import mean
from fxquant.kernels.moving_average_qparams import moving_average_qparams
from fxquant.kernels.mul import mul
from fxquant.kernels.prelu import prelu
from fxquant.kernels.quantize import quantize
from fxquant.kernels.resample2d import resample2d
from fxquant.kernels.softmax import softmax
from fxquant.kernels.table import table

__all__ = [
    "NativeStatus",
    "_fake_quantize_learnable_per_channel_affine",
    "_fake_quantize_learnable_per_channel_affine_backward",
    "_fake_quantize_learnable_per_tensor_affine",
    "_fake_quantize_learnable_per_tensor_affine_backward",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "adaptive_avg_pool2d",
    "add",
    "avg_pool2d",
    "cat",
    "conv2d",
    "conv3d",
    "dequantize",
    "embedding",
    "embedding_bag",
    "fake_quantize_learnable_per_channel_affine",
    "fake_quantize_learnable_per_channel_affine_backward",
    "fake_quantize_learnable_per_tensor_affine",
    "fake_quantize_learnable_per_tensor_affine_backward",
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_channel_affine_cachemask",
    "fake_quantize_per_channel_affine_cachemask_backward",
    "fake_quantize_per_tensor_affine",
    "fake_quantize_per_tensor_affine_cachemask",
    "fake_quantize_per_tensor_affine_cachemask_backward",
    "fused_moving_avg_obs_fake_quant",
    "histogram",
    "layer_norm",
    "linear",
    "matmul",
    "max_pool2d",
    "mean",
    "moving_average_qparams",
    "mul",
    "native_status",
    "prelu",
    "quantize",
    "resample2d",
    "softmax",
    "table",
]
