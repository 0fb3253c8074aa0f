"""The order in which the int8 convolutions read a weight: 64 output channels by 4 input channels lie together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL = 16
"""Output channels of a register: its 32 bit lanes, where it is widest."""

BLOCK = 4
"""Panels that lie together at most: as many as a kernel multiplies at once."""

QUAD = 4
"""Input channels that lie together: the bytes of a lane."""

FEW = 16
"""Input channels below which a row of a window's taps is read as if it were one pixel."""


@dataclass(frozen=True, slots=True)
class PackedOrder:
    """How a packed weight is divided; csrc/common/conv_shape.h says the same.

    A window is read in pieces: stretches of bytes that are multiplied by as many weights. A piece is a tap; a row of
    taps, of few input channels; a column of taps, of a depthwise convolution. Groups of less than 16 output channels
    are bundled and become one product: weights between different groups of a bundle are zero.

    The panels of a bundle are divided evenly into blocks, in which they take turns: 4 bytes for each channel of the
    first panel, of the second, and so on, then the next 4 bytes. So a block is one stretch of memory, read once from
    its begin to its end, and a matrix of [bytes / 4, channels, 4] as the instructions for tiles want it. A depthwise
    convolution has blocks of one panel.
    """

    bundles: int
    panels: int
    """Of a bundle."""
    pieces: int
    quads: int
    """Of a piece."""
    together: int = BLOCK
    """Panels of a block at most."""

    @classmethod
    def of(cls, channels: int, depth: int, kernel_size: Sequence[int], groups: int = 1) -> PackedOrder:
        """For a convolution from ``depth`` to ``channels``, both in all groups together."""
        rows, columns = (1, math.prod(kernel_size)) if len(kernel_size) < 2 else tuple(kernel_size)
        if is_depthwise(channels, depth, groups):
            return cls(1, math.ceil(channels / PANEL), columns, math.ceil(rows / QUAD), 1)
        bundles = groups // bundled(channels, groups)
        panels = math.ceil(channels // bundles / PANEL)
        if groups == 1 and depth < FEW and rows * columns > 1:
            return cls(1, panels, rows, math.ceil(columns * depth / QUAD))
        return cls(bundles, panels, rows * columns, math.ceil(depth // bundles / QUAD))

    @property
    def shape(self) -> list[int]:
        """Of the packed weight."""
        return [self.bundles * self.panels * self.pieces * self.quads, PANEL, QUAD]

    @property
    def blocks(self) -> list[slice]:
        """Which panels of a bundle lie together."""
        count = max(1, math.ceil(self.panels / self.together))
        ends = [i * self.panels // count for i in range(count + 1)]
        return [slice(first, last) for first, last in pairwise(ends)]


def is_depthwise(channels: int, depth: int, groups: int) -> bool:
    """Whether each channel of the result is made of the same channel of the input."""
    return 1 < groups == depth == channels


def bundled(channels: int, groups: int) -> int:
    """How many groups are multiplied together: as many as fill 16 output channels."""
    most = max(1, PANEL * groups // channels) if channels else 1
    return max(count for count in range(1, min(most, groups) + 1) if groups % count == 0)


def pack_weight(weight: Tensor, groups: int = 1) -> Tensor:
    """Reorder a weight.

    Args:
        weight: int8 [C_out, C_in / groups, *kernel_size], at most two sizes.
        groups: Of the convolution.

    Returns:
        int8 [bundles * panels * pieces * quads, 16, 4] as :class:`PackedOrder` says, contiguous, zero where there is no
        channel.
    """
    channels, depth, *kernel_size = weight.shape
    order = PackedOrder.of(channels, depth * groups, kernel_size, groups)
    pieces = _in_pieces(weight, order, groups)  # [bundle, channel, piece, byte]
    padded = F.pad(pieces, (0, -pieces.shape[3] % QUAD, 0, 0, 0, -pieces.shape[1] % PANEL))
    split = padded.reshape(order.bundles, order.panels, PANEL, order.pieces * order.quads, QUAD)
    blocks = [split[:, panels].permute(0, 3, 1, 2, 4).flatten(1, 2) for panels in order.blocks]
    return torch.cat(blocks, 1).reshape(order.shape)


def unpack_weight(packed: Tensor, channels: int, depth: int, kernel_size: Sequence[int], groups: int = 1) -> Tensor:
    """What :func:`pack_weight` was given: int8 [channels, depth, *kernel_size]; ``depth`` is that of a group."""
    order = PackedOrder.of(channels, depth * groups, kernel_size, groups)
    where = torch.arange(channels * depth * math.prod(kernel_size), device=packed.device)
    shape = (channels, depth, *kernel_size)
    pieces = _in_pieces(where.reshape(shape) + 1, order, groups)  # each place's number; 0 where nothing lies
    length = order.pieces * order.quads
    lines = packed.reshape(order.bundles, order.panels, length * PANEL * QUAD)
    blocks = [
        lines[:, panels].reshape(order.bundles, length, panels.stop - panels.start, PANEL, QUAD)
        for panels in order.blocks
    ]
    split = torch.cat([block.permute(0, 2, 3, 1, 4) for block in blocks], 1)
    padded = split.reshape(order.bundles, order.panels * PANEL, order.pieces, order.quads * QUAD)
    bytes_of = padded[:, : pieces.shape[1], :, : pieces.shape[3]]
    weight = torch.empty(len(where) + 1, dtype=torch.int8, device=packed.device)
    weight[pieces.flatten()] = bytes_of.flatten()
    return weight[1:].reshape(shape)


def _in_pieces(weight: Tensor, order: PackedOrder, groups: int) -> Tensor:
    """[bundles, channels of a bundle, pieces, bytes of a piece]."""
    channels, depth, *sizes = weight.shape
    rows, columns = (1, math.prod(sizes)) if len(sizes) < 2 else sizes
    if is_depthwise(channels, depth * groups, groups):
        return weight.reshape(1, channels, rows, columns).transpose(2, 3)
    taps = weight.reshape(channels, depth, rows * columns).transpose(1, 2)  # [channel, tap, depth]
    together = groups // order.bundles
    if together == 1:
        length = rows * columns * depth // order.pieces
        return taps.reshape(order.bundles, channels // order.bundles, order.pieces, length)
    of_group = taps.reshape(order.bundles, together, channels // groups, rows * columns, depth)
    bundle = weight.new_zeros((order.bundles, together, channels // groups, rows * columns, together, depth))
    for i in range(together):
        bundle[:, i, :, :, i] = of_group[:, i]
    return bundle.reshape(order.bundles, channels // order.bundles, rows * columns, together * depth)


def start_values(weight: Tensor, x_dtype: torch.dtype, x_zero_point: int) -> Tensor:
    """``-z * sum(weight[c])``, int32 [C_out], with the zero point ``z`` of ``x`` as a uint8 (an int8 moved by 128)."""
    zero_point = x_zero_point + (128 if x_dtype == torch.int8 else 0)
    return (weight.flatten(1).sum(1, dtype=torch.int64) * -zero_point).to(torch.int32)
