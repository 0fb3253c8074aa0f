"""What training uses where the user names no configuration."""

from __future__ import annotations

import torch
from torch import nn

from fxquant.fake_quantize.learnable import LearnableFakeQuantize
from fxquant.fake_quantize.presets import (
    default_embedding_fake_quant,
    default_fused_act_fake_quant,
    default_fused_per_channel_wt_fake_quant,
)
from fxquant.observers.fixed import PlaceholderObserver
from fxquant.observers.histogram import HistogramObserver
from fxquant.observers.mse import MSEObserver
from fxquant.plan.qconfig import QConfig, QConfigMapping

default_qat_qconfig = QConfig(activation=default_fused_act_fake_quant, weight=default_fused_per_channel_wt_fake_quant)
"""Activations uint8, affine, per tensor; weights int8 in [-128, 127], symmetric, per output channel; both by moving
averages."""

default_embedding_qat_qconfig = QConfig(activation=PlaceholderObserver, weight=default_embedding_fake_quant)
"""Tables of embeddings, whose result stays float."""


def get_lsq_qconfig(weight_bits: int = 8, activation_bits: int = 8) -> QConfig:
    """Learned step sizes: grids begin where the squared error is least, and then get gradients.

    Observers choose the grids until ``model.apply(enable_param_learning)``; run some batches before. Activations are
    unsigned, affine, per tensor; weights signed, symmetric, per output channel.

    Args:
        weight_bits, activation_bits: 2 to 8.

    Source:
        Esser et al., "Learned Step Size Quantization", arXiv:1902.08153; Bhalgat et al., "LSQ+", arXiv:2004.09576, for
        zero points, and for the start by least squares (section 3.2).
    """
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
    """How a back end trains by default; so far the same for all."""
    del backend
    return default_qat_qconfig


def get_default_qat_qconfig_mapping(backend: str = "cpu") -> QConfigMapping:
    """A mapping that trains everything in the default way of a back end; add rules to it."""
    mapping = QConfigMapping().set_global(get_default_qat_qconfig(backend))
    for table in (nn.Embedding, nn.EmbeddingBag):
        mapping.set_object_type(table, default_embedding_qat_qconfig)
    return mapping
