"""Ready constructors of fake-quantize modules, under the names that users of torch.ao.quantization know."""

from __future__ import annotations

import torch

from fxquant.fake_quantize.fixed import FixedQParamsFakeQuantize
from fxquant.fake_quantize.fused import FusedMovingAvgObsFakeQuantize
from fxquant.fake_quantize.plain import FakeQuantize
from fxquant.observers.fixed import (
    default_fixed_qparams_range_0to1_observer,
    default_fixed_qparams_range_neg1to1_observer,
)
from fxquant.observers.histogram import HistogramObserver
from fxquant.observers.moving_average import MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver

default_fake_quant = FakeQuantize.with_args(
    observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.uint8, reduce_range=True
)
"""Activations: uint8 of 7 bits, affine, per tensor, moving average."""

default_weight_fake_quant = FakeQuantize.with_args(
    observer=MovingAverageMinMaxObserver,
    quant_min=-128,
    quant_max=127,
    dtype=torch.int8,
    qscheme="per_tensor_symmetric",
    reduce_range=False,
)
"""Weights: int8, symmetric, per tensor."""

default_dynamic_fake_quant = FakeQuantize.with_args(
    observer=MovingAverageMinMaxObserver,
    quant_min=0,
    quant_max=255,
    is_dynamic=True,
    dtype=torch.uint8,
    averaging_constant=1,
)
"""Activations whose grid is measured in every call."""

default_fixed_qparams_range_neg1to1_fake_quant = FixedQParamsFakeQuantize.with_args(
    observer=default_fixed_qparams_range_neg1to1_observer
)
"""For tanh."""

default_fixed_qparams_range_0to1_fake_quant = FixedQParamsFakeQuantize.with_args(
    observer=default_fixed_qparams_range_0to1_observer
)
"""For sigmoid, hardsigmoid, softmax."""

default_symmetric_fixed_qparams_fake_quant = default_fixed_qparams_range_neg1to1_fake_quant
default_affine_fixed_qparams_fake_quant = default_fixed_qparams_range_0to1_fake_quant

default_per_channel_weight_fake_quant = FakeQuantize.with_args(
    observer=MovingAveragePerChannelMinMaxObserver,
    quant_min=-128,
    quant_max=127,
    dtype=torch.int8,
    qscheme="per_channel_symmetric",
    reduce_range=False,
    ch_axis=0,
)
"""Weights: int8, symmetric, per output channel."""

default_embedding_fake_quant = FakeQuantize.with_args(
    observer=MovingAveragePerChannelMinMaxObserver,
    qscheme="per_channel_affine_float_qparams",
    dtype=torch.uint8,
    quant_min=0,
    quant_max=255,
    ch_axis=0,
    averaging_constant=1,
)
"""Rows of embeddings: uint8, affine, with a real zero point."""

default_embedding_fake_quant_4bit = FakeQuantize.with_args(
    observer=MovingAveragePerChannelMinMaxObserver,
    qscheme="per_channel_affine_float_qparams",
    bits=4,
    ch_axis=0,
    averaging_constant=1,
)
"""The same in 4 bits."""

default_histogram_fake_quant = FakeQuantize.with_args(
    observer=HistogramObserver, quant_min=0, quant_max=255, dtype=torch.uint8, reduce_range=True
)
"""Activations by a histogram."""

default_fused_act_fake_quant = FusedMovingAvgObsFakeQuantize.with_args(
    observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.uint8
)
"""Activations: uint8, affine, per tensor, moving average."""

default_fused_wt_fake_quant = FusedMovingAvgObsFakeQuantize.with_args(
    observer=MovingAverageMinMaxObserver,
    quant_min=-128,
    quant_max=127,
    dtype=torch.int8,
    qscheme="per_tensor_symmetric",
)
"""Weights: int8, symmetric, per tensor."""

default_fused_per_channel_wt_fake_quant = FusedMovingAvgObsFakeQuantize.with_args(
    observer=MovingAveragePerChannelMinMaxObserver,
    quant_min=-128,
    quant_max=127,
    dtype=torch.int8,
    qscheme="per_channel_symmetric",
)
"""Weights: int8, symmetric, per output channel."""

fused_wt_fake_quant_range_neg_127_to_127 = FusedMovingAvgObsFakeQuantize.with_args(
    observer=MovingAverageMinMaxObserver,
    quant_min=-127,
    quant_max=127,
    dtype=torch.int8,
    qscheme="per_tensor_symmetric",
    eps=2**-12,
)
"""Weights in [-127, 127], symmetric, per tensor."""

fused_per_channel_wt_fake_quant_range_neg_127_to_127 = FusedMovingAvgObsFakeQuantize.with_args(
    observer=MovingAveragePerChannelMinMaxObserver,
    quant_min=-127,
    quant_max=127,
    dtype=torch.int8,
    qscheme="per_channel_symmetric",
    eps=2**-12,
)
"""Weights in [-127, 127], symmetric, per output channel."""
