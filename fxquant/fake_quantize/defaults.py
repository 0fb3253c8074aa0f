"""Fake-quantize modules and configurations that training uses by default, the modules under the names that users of
torch.ao.quantization know."""

from __future__ import annotations

import torch
from torch import nn

from fxquant.fake_quantize.fixed import FixedQParamsFakeQuantize
from fxquant.fake_quantize.fused import FusedMovingAvgObsFakeQuantize
from fxquant.fake_quantize.learnable import LearnableFakeQuantize
from fxquant.fake_quantize.plain import FakeQuantize
from fxquant.fake_quantize.weight import WeightFakeQuantize
from fxquant.observers.fixed import (
    PlaceholderObserver,
    default_fixed_qparams_range_0to1_observer,
    default_fixed_qparams_range_neg1to1_observer,
)
from fxquant.observers.histogram import HistogramObserver
from fxquant.observers.moving_average import MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver
from fxquant.observers.mse import MSEObserver
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.plan.spec import check_number, is_whole

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
"""Activations whose qparams are chosen in every call."""

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

default_qat_qconfig = QConfig(activation=default_fused_act_fake_quant, weight=WeightFakeQuantize.with_args())
"""Activations uint8, affine, per tensor, by a moving average; weights int8 in [-128, 127], symmetric, per output
channel, by the extremes of the present weight."""

default_embedding_qat_qconfig = QConfig(activation=PlaceholderObserver, weight=default_embedding_fake_quant)
"""Tables of embeddings, whose result stays float."""


def get_lsq_qconfig(weight_bits: int = 8, activation_bits: int = 8) -> QConfig:
    """Return a configuration of learned step sizes: qparams begin where the squared error is least, then get gradients.

    Observers choose the qparams until ``model.apply(enable_param_learning)``; run some batches before. Activations are
    unsigned, affine, per tensor; weights signed, symmetric, per output channel.

    Args:
        weight_bits, activation_bits: 2 to 8.

    Raises:
        SpecError: one of them is no such number.

    Source:
        Esser et al., "Learned Step Size Quantization", arXiv:1902.08153; Bhalgat et al., "LSQ+", arXiv:2004.09576, for
        zero points, and for the start by least squares (section 3.2).
    """
    for name, bits in (("weight_bits", weight_bits), ("activation_bits", activation_bits)):
        check_number(name, bits, lambda number: is_whole(number) and 2 <= number <= 8, "2 to 8")
    half = 2 ** (weight_bits - 1)
    activation = LearnableFakeQuantize.with_args(
        observer=HistogramObserver.with_args(dtype=torch.uint8, bits=activation_bits),
        quant_min=0,
        quant_max=2**activation_bits - 1,
        use_grad_scaling=True,
    )
    weight = LearnableFakeQuantize.with_args(
        observer=MSEObserver.with_args(ch_axis=0, dtype=torch.int8, bits=weight_bits, qscheme="per_channel_symmetric"),
        quant_min=-half,
        quant_max=half - 1,
        channel_len=None,
        use_grad_scaling=True,
    )
    return QConfig(activation=activation, weight=weight)


def get_default_qat_qconfig(backend: str = "cpu") -> QConfig:
    """Return the configuration that a back end trains with by default; so far it is the same for all."""
    del backend
    return default_qat_qconfig


def get_default_qat_qconfig_mapping(backend: str = "cpu") -> QConfigMapping:
    """Return a mapping that trains everything in the default way of a back end; add rules to it."""
    mapping = QConfigMapping().set_global(get_default_qat_qconfig(backend))
    for table in (nn.Embedding, nn.EmbeddingBag):
        mapping.set_object_type(table, default_embedding_qat_qconfig)
    return mapping
