"""Says what int8 operators accept: schemes that fit a byte, and layers whose sums fit int32; else the reason."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fxquant.backends.base import SIGNED_WEIGHTS
from fxquant.graph.recurrent import weight_of
from fxquant.nn.weight import LARGEST_FAN_IN
from fxquant.plan.spec import QScheme


def byte_activation(scheme: QScheme) -> str | None:
    """Accept activations that are stored in one byte, with one scale for the whole tensor."""
    if scheme.bits > 8:
        return f"{scheme.bits} bit activations do not fit a byte"
    if scheme.axis is not None or scheme.float_qparams:
        return f"activations are integers with one scale for the whole tensor, not {scheme}"
    return None


def byte_weight(scheme: QScheme) -> str | None:
    """Accept weights that are stored as int8, symmetric, with one scale or one for each output channel."""
    if scheme.bits > 8:
        return f"{scheme.bits} bit weights do not fit a byte"
    if not scheme.signed or not scheme.symmetric:
        qscheme = "per_tensor_symmetric" if scheme.axis is None else "per_channel_symmetric"
        words = ("" if scheme.signed else "dtype=torch.int8", "" if scheme.symmetric else f"qscheme=torch.{qscheme}")
        return f"{SIGNED_WEIGHTS} ({', '.join(filter(None, words))}), not {scheme}"
    if scheme.group_size is not None:
        return "weights with one scale per group have no integer operator; backend='reference' simulates them"
    return None


def byte_table(scheme: QScheme) -> str | None:
    """Accept tables whose rows are stored in bytes, or, of at most 4 bits, in halves of them, each with a scale."""
    if scheme.bits > 8:
        return f"{scheme.bits} bit tables do not fit bytes"
    if scheme.group_size is not None:
        return "tables with one scale per group have no integer operator; backend='reference' simulates them"
    return None


def int32_accumulators(layer: nn.Module) -> str | None:
    """Accept layers whose accumulators, which are int32, cannot overflow."""
    weight = weight_of(layer)
    return _int32_accumulators_of(weight[0].numel() if weight.numel() else 0)


def _int32_accumulators_of(products: int) -> str | None:
    if not products:
        return "its weight is empty"
    if products > LARGEST_FAN_IN:
        return f"{products} products per output can overflow an int32 sum; {LARGEST_FAN_IN} cannot"
    return None


def int32_accumulators_transposed(layer: nn.Module) -> str | None:
    """Accept the same of a weight [C_in, C_out / groups, ...]: a sum runs over the input channels of a group."""
    conv: Any = layer
    weight: torch.Tensor = conv.weight
    return _int32_accumulators_of(weight[: len(weight) // conv.groups, 0].numel() if weight.numel() else 0)
