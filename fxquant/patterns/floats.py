"""Operators that are known and stay float all the same, each with its reason."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from fxquant.graph.canonical import canonical_target
from fxquant.graph.query import canonical_type, module_of

PRODUCT = "the product of two activations has no integer operator yet"
OWN_STATISTICS = "it normalizes every sample by the sample's own statistics, which has no integer operator yet"
EXPONENTIALS = "a sum of exponentials over a dimension has no integer operator yet"
QUOTIENT = "the quotient of two tensors has no bounds where the divisor comes near 0, so no grid fits it"
STEEP = "it is steep where a grid is coarse: one step of the input may be most of the output's range"
RECURRENT = "recurrent layers have no integer operator yet"
ATTENTION = "attention as one operator has no integer form; its parts may have"
BAG = "a bag has an integer form as a layer only: nn.EmbeddingBag"
POOL = "this pool has no integer operator yet; those in two dimensions have"

_REASONS: dict[str, tuple[Any, ...]] = {
    PRODUCT: (torch.matmul, torch.bmm, torch.mm, torch.baddbmm, torch.addmm, torch.einsum),
    OWN_STATISTICS: (
        *(F.layer_norm, F.group_norm, F.instance_norm, F.local_response_norm, F.normalize, F.rms_norm),
        *(nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm),
        *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    ),
    EXPONENTIALS: (F.softmax, F.log_softmax, nn.LogSoftmax, torch.logsumexp),
    QUOTIENT: (torch.div,),
    STEEP: (torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal),
    RECURRENT: (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell),
    ATTENTION: (nn.MultiheadAttention, F.multi_head_attention_forward, F.scaled_dot_product_attention),
    BAG: (F.embedding_bag,),
    POOL: (
        *(F.max_pool1d, F.max_pool3d, F.avg_pool1d, F.avg_pool3d, F.adaptive_avg_pool1d, F.adaptive_avg_pool3d),
        *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d, nn.FractionalMaxPool2d),
    ),
}

STAYS_FLOAT: dict[Any, str] = {
    canonical_target(target): reason for reason, targets in _REASONS.items() for target in targets
}
"""Canonical target -> why it has no integer form."""


def why_float(node: Node) -> str | None:
    """Why the operator of a node has no integer form, where that is known."""
    module = module_of(node)
    return STAYS_FLOAT.get(node.target if module is None else canonical_type(module))
