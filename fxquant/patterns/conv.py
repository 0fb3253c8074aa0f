"""Convolution patterns, plain and transposed. One entry = one unit that is quantized, fused and lowered as a whole."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.fx import Node

from fxquant.graph.affine import ChannelAffine
from fxquant.graph.query import called_module, value_of
from fxquant.patterns.batch_norm import fixed_statistics, normalized
from fxquant.patterns.elementwise import clamped, constant_bounds, plain_add
from fxquant.patterns.pattern import Op, Pattern, Reject, all_of, op, tensor

CONV = op(nn.Conv1d, nn.Conv2d, nn.Conv3d)(tensor("x")).named("conv")
CONV_BN = normalized(CONV)


def norm_has_channel_axis_of_conv(captures: Mapping[str, Node]) -> Reject | None:
    """Refuse an unbatched convolution: ``BatchNorm1d`` takes [C, H, W] for [N, C, L], and normalizes over H, not C.

    A ``ChannelAffine`` (``x * scale + shift`` with constants) stands for a batch norm, too. Its ``behind`` is the
    number of dimensions after the channels.
    """
    conv, value, norm = captures["conv"], value_of(captures["conv"]), called_module(captures["bn"])
    if isinstance(norm, ChannelAffine):
        trailing = called_module(conv).weight.dim() - 2
        return None if norm.behind == trailing else Reject("it multiplies along another dimension than the channels")
    if value is not None and value.has_shape and len(value.shape) != called_module(conv).weight.dim():
        return Reject("without a batch dimension the batch norm normalizes another dimension than the channels", conv)
    return None


can_fold = all_of(fixed_statistics, norm_has_channel_axis_of_conv)
"""The batch norm has running statistics, and its channels are the output channels: then it folds into the weight."""


def plus_residual(inner: Op) -> Op:
    """``inner`` plus a second tensor, on either side of the plus."""
    return op(torch.add, commutative=True)(inner, tensor("residual")).named("add")


def keeps_shape(captures: Mapping[str, Node]) -> Reject | None:
    """The residual may be broadcast to the convolution's output, never the other way round."""
    inner = value_of(captures.get("bn") or captures["conv"])
    total = value_of(captures["add"])
    if inner is not None and not inner.has_shape:
        return Reject("the shapes of the summands are not known without example inputs", captures["add"])
    if inner is not None and total is not None and inner.shape != total.shape:
        return Reject("the sum has another shape than the convolution's output", captures["add"])
    return None


plain_residual = all_of(plain_add, keeps_shape)
"""The sum has no ``alpha``, and the shape of the convolution's output."""

RESIDUAL_PATTERNS = (
    Pattern(
        "conv_bn_add_act",
        clamped(plus_residual(CONV_BN)),
        inputs=("x", "residual"),
        weight="conv",
        check=all_of(can_fold, plain_residual, constant_bounds),
    ),
    Pattern(
        "conv_bn_add",
        plus_residual(CONV_BN),
        inputs=("x", "residual"),
        weight="conv",
        check=all_of(can_fold, plain_residual),
    ),
    Pattern(
        "conv_add_act",
        clamped(plus_residual(CONV)),
        inputs=("x", "residual"),
        weight="conv",
        check=all_of(plain_residual, constant_bounds),
    ),
    Pattern("conv_add", plus_residual(CONV), inputs=("x", "residual"), weight="conv", check=plain_residual),
)
"""Where a back end has no rule for these, the convolution and the sum are two units."""

# Captures, the names by which checks and lower_units ask for nodes: x, conv, bn, act (the clamp), add, residual.
# Checks: can_fold, above; constant_bounds (elementwise.py): the bounds of the clamp are numbers.
CONV_PATTERNS = (
    Pattern("conv_bn_act", clamped(CONV_BN), inputs=("x",), weight="conv", check=all_of(can_fold, constant_bounds)),
    Pattern("conv_bn", CONV_BN, inputs=("x",), weight="conv", check=can_fold),
    Pattern("conv_act", clamped(CONV), inputs=("x",), weight="conv", check=constant_bounds),
    Pattern("conv", CONV, inputs=("x",), weight="conv"),
)

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
        inputs=("x",),
        weight="conv",
        weight_axis=OUTPUT_CHANNELS,
        check=all_of(own_size, can_fold, constant_bounds),
    ),
    Pattern(
        "conv_transpose_bn",
        TRANSPOSED_BN,
        inputs=("x",),
        weight="conv",
        weight_axis=OUTPUT_CHANNELS,
        check=all_of(own_size, can_fold),
    ),
    Pattern(
        "conv_transpose_act",
        clamped(TRANSPOSED),
        inputs=("x",),
        weight="conv",
        weight_axis=OUTPUT_CHANNELS,
        check=all_of(own_size, constant_bounds),
    ),
    Pattern("conv_transpose", TRANSPOSED, inputs=("x",), weight="conv", weight_axis=OUTPUT_CHANNELS, check=own_size),
)
