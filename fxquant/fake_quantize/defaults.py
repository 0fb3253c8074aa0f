"""What training uses where the user names no configuration."""

from __future__ import annotations

from torch import nn

from fxquant.fake_quantize.presets import (
    default_embedding_fake_quant,
    default_fused_act_fake_quant,
    default_fused_per_channel_wt_fake_quant,
)
from fxquant.observers.placeholder import PlaceholderObserver
from fxquant.qconfig import QConfig, QConfigMapping

default_qat_qconfig = QConfig(activation=default_fused_act_fake_quant, weight=default_fused_per_channel_wt_fake_quant)
"""Activations uint8, affine, per tensor; weights int8 in [-128, 127], symmetric, per output channel; both by moving
averages."""

default_embedding_qat_qconfig = QConfig(activation=PlaceholderObserver, weight=default_embedding_fake_quant)
"""Tables of embeddings, whose result stays float."""


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
