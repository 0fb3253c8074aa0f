"""Operators that are known and stay float all the same, each with its reason."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from fxquant.graph.decompositions.composites import COMPOSITES, MANY
from fxquant.graph.operators.spelling import canonical_target
from fxquant.graph.query import canonical_type, module_of

COMPOSITE = "as one operator it has no integer form; those that it is made of may have"
BATCH_STATISTICS = "it normalizes by statistics of the batch, or by others that are computed at run time"
OWN_STATISTICS = "it normalizes every sample by the sample's own statistics, which has no integer operator yet"
EXPONENTIALS = "a sum of exponentials over a dimension has no integer operator yet"
QUOTIENT = "the quotient of two tensors has no bounds where the divisor comes near 0, so no quantization range fits it"
STEEP = "it is steep where quantized values are coarse: one step of the input may be most of the output's range"
ATTENTION = "attention as one operator has no integer form; its parts may have"
POWERS = "a root of a sum of powers has no integer operator yet"
GIVES_INDICES = "it also gives the places of the maxima, which have no qparams"
SAMPLED = "it reads between the elements at places that are computed at run time, which has no integer operator yet"
CUMULATIVE = "each of its values is a sum or a product of all before it, which has no integer operator yet"
MASKED = "it chooses by a mask between values of different qparams, which has no integer operator yet"
HAS_JUMPS = "it jumps: next to a jump one step of the input is the whole height of a stair"
SIMILARITY = "it divides by the lengths of vectors, which has no integer operator yet"
NOT_FINITE = "it looks for NaN and infinities, which quantized values do not hold"
OVERLAPS = "it copies or sums overlapping blocks, which has no integer operator yet"


def _by_name(names: str) -> tuple[Any, ...]:
    """Functions of torch and tensor methods of these names."""
    found = [getattr(torch, name) for name in names.split() if hasattr(torch, name)]
    return (*found, *(name for name in names.split() if hasattr(torch.Tensor, name)))


_REASONS: dict[str, tuple[Any, ...]] = {
    COMPOSITE: tuple(COMPOSITES),
    MANY: (nn.Bilinear, F.bilinear, torch.linalg.multi_dot, *_by_name("chain_matmul")),
    BATCH_STATISTICS: (F.batch_norm,),
    OWN_STATISTICS: (
        *(F.layer_norm, F.group_norm, F.instance_norm, F.local_response_norm, F.normalize, F.rms_norm),
        *(torch.layer_norm, torch.group_norm, torch.instance_norm, torch.rms_norm),
        *(nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm),
    ),
    EXPONENTIALS: (
        *(F.log_softmax, F.softmin, nn.LogSoftmax, nn.Softmin, nn.Softmax2d),
        *_by_name("log_softmax logsumexp"),
    ),
    QUOTIENT: (torch.div, *_by_name("addcdiv")),
    STEEP: (
        *(torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal),
        *_by_name("exp2 expm1 log1p log2 log10 sin cos tan sinh cosh asin acos acosh atanh erfinv logit sinc"),
        *(torch.pow, operator.pow),  # what is no power of a tensor: patterns know those
    ),
    ATTENTION: (nn.MultiheadAttention, F.multi_head_attention_forward, F.scaled_dot_product_attention),
    POWERS: (
        *_by_name("hypot"),
        *(F.lp_pool1d, F.lp_pool2d, F.lp_pool3d, nn.LPPool1d, nn.LPPool2d, nn.LPPool3d),
        *_by_name("std var norm"),
        *(torch.linalg.norm, torch.linalg.vector_norm, torch.std_mean, torch.var_mean),
    ),
    GIVES_INDICES: (
        *(F.max_pool1d_with_indices, F.max_pool2d_with_indices, F.max_pool3d_with_indices),
        *(F.adaptive_max_pool1d_with_indices, F.adaptive_max_pool2d_with_indices, F.adaptive_max_pool3d_with_indices),
        *(F.fractional_max_pool2d, F.fractional_max_pool3d, F.fractional_max_pool2d_with_indices),
        *(nn.FractionalMaxPool2d, nn.FractionalMaxPool3d, nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d),
        *(F.max_unpool1d, F.max_unpool2d, F.max_unpool3d),
        *_by_name("sort topk median mode kthvalue cummax cummin aminmax"),
    ),
    SAMPLED: (F.grid_sample, torch.grid_sampler),
    CUMULATIVE: _by_name("cumsum cumprod logcumsumexp prod"),
    MASKED: (*_by_name("where masked_fill masked_scatter index_fill scatter scatter_add tril triu"),),
    HAS_JUMPS: (
        *_by_name("sign sgn floor ceil round trunc fix frac fmod remainder floor_divide heaviside"),
        *(operator.mod, operator.floordiv),
    ),
    SIMILARITY: (
        *(F.cosine_similarity, F.pairwise_distance, nn.CosineSimilarity, nn.PairwiseDistance, torch.cdist, torch.dist),
    ),
    OVERLAPS: (F.unfold, F.fold, nn.Unfold, nn.Fold),
    NOT_FINITE: _by_name("nan_to_num"),
}

STAYS_FLOAT: dict[Any, str] = {
    canonical_target(target): reason for reason, targets in _REASONS.items() for target in targets
}
"""Canonical target -> why no integer operator takes its place."""


def why_float(node: Node) -> str | None:
    """Say why the operator of a node stays float, where that is known."""
    module = module_of(node)
    if getattr(module, "return_indices", False):
        return GIVES_INDICES
    if module is not None:
        return STAYS_FLOAT.get(canonical_type(module))
    # ``2**x`` keeps its target, since the canonical operator takes the tensor first.
    return STAYS_FLOAT.get(node.target) or STAYS_FLOAT.get(canonical_target(node.target))
