"""Operators on quantized tensors. Importing this defines ``torch.ops.fxquant.*`` and loads the native kernels."""

from fxquant.kernels.conv.conv import conv2d, conv3d
from fxquant.kernels.elementwise.binary import add, mul
from fxquant.kernels.elementwise.cat import cat
from fxquant.kernels.elementwise.prelu import prelu
from fxquant.kernels.embedding.embedding import embedding
from fxquant.kernels.embedding.embedding_bag import embedding_bag
from fxquant.kernels.fake_quantize.cachemask import (
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams,
    fake_quantize_per_channel_affine_cachemask,
    fake_quantize_per_channel_affine_cachemask_backward,
    fake_quantize_per_tensor_affine_cachemask,
    fake_quantize_per_tensor_affine_cachemask_backward,
)
from fxquant.kernels.fake_quantize.fake_quantize import (
    fake_quantize_per_channel_affine,
    fake_quantize_per_tensor_affine,
)
from fxquant.kernels.fake_quantize.fake_quantize_learnable import (
    _fake_quantize_learnable_per_channel_affine,
    _fake_quantize_learnable_per_channel_affine_backward,
    _fake_quantize_learnable_per_tensor_affine,
    _fake_quantize_learnable_per_tensor_affine_backward,
    fake_quantize_learnable_per_channel_affine,
    fake_quantize_learnable_per_channel_affine_backward,
    fake_quantize_learnable_per_tensor_affine,
    fake_quantize_learnable_per_tensor_affine_backward,
)
from fxquant.kernels.fake_quantize.fused_moving_avg_obs_fake_quant import fused_moving_avg_obs_fake_quant
from fxquant.kernels.fake_quantize.histogram import histogram
from fxquant.kernels.fake_quantize.moving_average_qparams import moving_average_qparams
from fxquant.kernels.library import NativeStatus, native_status
from fxquant.kernels.linear.dynamic_linear import dynamic_linear
from fxquant.kernels.linear.linear import linear
from fxquant.kernels.linear.per_token_linear import per_token_linear
from fxquant.kernels.linear.weight_only_linear import weight_only_linear
from fxquant.kernels.matmul.matmul import matmul
from fxquant.kernels.norm.layer_norm import layer_norm
from fxquant.kernels.norm.softmax import softmax
from fxquant.kernels.pool.adaptive_avg_pool2d import adaptive_avg_pool2d
from fxquant.kernels.pool.avg_pool2d import avg_pool2d
from fxquant.kernels.pool.max_pool2d import max_pool2d
from fxquant.kernels.pool.mean import mean
from fxquant.kernels.pool.resample2d import resample2d
from fxquant.kernels.quantize.dequantize import dequantize
from fxquant.kernels.quantize.quantize import quantize
from fxquant.kernels.quantize.quantize_per_token import quantize_per_token
from fxquant.kernels.recurrent.recurrent_steps import recurrent_steps
from fxquant.kernels.table.table import table

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
    "dynamic_linear",
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
    "per_token_linear",
    "prelu",
    "quantize",
    "quantize_per_token",
    "recurrent_steps",
    "resample2d",
    "softmax",
    "table",
    "weight_only_linear",
]
