"""Transposed convolutions, whose weights are [C_in, C_out / groups, *kernel_size]."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.fx import Node

from fxquant.patterns.activation import clamped, constant_bounds
from fxquant.patterns.batch_norm import normalized
from fxquant.patterns.conv import can_fold
from fxquant.patterns.pattern import Pattern, Reject, all_of, op, tensor

TRANSPOSED = op(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)(tensor("x")).named("conv")
TRANSPOSED_BN = normalized(TRANSPOSED)

OUTPUT_CHANNELS = 1
"""Dimension of the weight that counts the output channels of a group."""


def own_size(captures: Mapping[str, Node]) -> Reject | None:
    """``output_size`` chooses among the sizes that would give this input; it may differ from call to call."""
    node = captures["conv"]
    if len(node.args) + len(node.kwargs) > 1:
        return Reject("it is called with an output_size of its own", node)
    return None


CONV_TRANSPOSE = (
    Pattern(
        "conv_transpose_bn_act",
        clamped(TRANSPOSED_BN),
        ("x",),
        "conv",
        OUTPUT_CHANNELS,
        check=all_of(own_size, can_fold, constant_bounds),
    ),
    Pattern("conv_transpose_bn", TRANSPOSED_BN, ("x",), "conv", OUTPUT_CHANNELS, check=all_of(own_size, can_fold)),
    Pattern(
        "conv_transpose_act",
        clamped(TRANSPOSED),
        ("x",),
        "conv",
        OUTPUT_CHANNELS,
        check=all_of(own_size, constant_bounds),
    ),
    Pattern("conv_transpose", TRANSPOSED, ("x",), "conv", OUTPUT_CHANNELS, check=own_size),
)
