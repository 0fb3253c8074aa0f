"""The order in which the int8 convolutions read a weight: 64 output channels by 4 input channels lie together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
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

SUMMED_AT_ONCE = 1 << 16
"""Elements of a weight that are summed in one step, so that it takes little memory beside the weight."""

LOOKED_AT = 64
"""Elements by which weights that may be equal are found, before all are compared."""

FEW = 16
"""Input channels below which a row of a window's taps is read as if it were one pixel."""


@dataclass(frozen=True, slots=True)
class PackedOrder:
    """How a packed weight is divided; csrc/conv/conv_shape.h says the same.

    A window is read in pieces: stretches of bytes that are multiplied by as many weights. A piece is a tap; a row of
    taps, of few input channels; a column of taps, of all planes, of a depthwise convolution. Groups of less than 16
    output channels are bundled and become one product: weights between different groups of a bundle are zero.

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
        rows, columns = _rows_and_columns(kernel_size)
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


def _rows_and_columns(kernel_size: Sequence[int]) -> tuple[int, int]:
    """Rows of a window's taps, of all its planes, and their length."""
    return (math.prod(kernel_size[:-1]), kernel_size[-1]) if kernel_size else (1, 1)


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
        weight: int8 [C_out, C_in / groups, *kernel_size], at most three sizes.
        groups: Of the convolution.

    Returns:
        int8 [bundles * panels * pieces * quads, 16, 4] as :class:`PackedOrder` says, contiguous, zero where there is no
        channel.
    """
    channels, depth, *kernel_size = weight.shape
    order = PackedOrder.of(channels, depth * groups, kernel_size, groups)
    pieces = _in_pieces(weight, order, groups)  # [bundle, channel, piece, byte]
    widths = (0, -pieces.shape[3] % QUAD, 0, 0, 0, -pieces.shape[1] % PANEL)
    padded = F.pad(pieces, widths) if any(widths) else pieces  # by nothing it would be a copy, too
    split = padded.reshape(order.bundles, order.panels, PANEL, order.pieces, order.quads, QUAD)
    packed = weight.new_empty(order.shape)
    for panels, block in _blocks(packed, order):
        block.copy_(split[:, panels].permute(0, 3, 4, 1, 2, 5))
    return packed


def unpack_weight(packed: Tensor, channels: int, depth: int, kernel_size: Sequence[int], groups: int = 1) -> Tensor:
    """What :func:`pack_weight` was given, in new memory: int8 [channels, depth, *kernel_size]; ``depth`` of a group."""
    order = PackedOrder.of(channels, depth * groups, kernel_size, groups)
    taps, each = math.prod(kernel_size), channels // groups
    split = packed.new_empty((order.bundles, order.panels, PANEL, order.pieces, order.quads, QUAD))
    for panels, block in _blocks(packed, order):
        split[:, panels].permute(0, 3, 4, 1, 2, 5).copy_(block)
    pieces = split.view(order.bundles, order.panels * PANEL, order.pieces, order.quads * QUAD)
    if is_depthwise(channels, depth * groups, groups):
        ordered = pieces[0, :channels, :, : taps // order.pieces].transpose(1, 2)
    else:
        together = groups // order.bundles
        bytes_of = pieces[:, : together * each, :, : together * depth * taps // order.pieces]
        of_group = bytes_of.reshape(order.bundles, together, each, taps, together, depth).diagonal(dim1=1, dim2=4)
        ordered = of_group.permute(0, 4, 1, 3, 2)  # [bundle, group, channel, depth, tap]
    weight = packed.new_empty((channels, depth, *kernel_size))
    weight.view(ordered.shape).copy_(ordered)
    return weight


def _blocks(packed: Tensor, order: PackedOrder) -> Iterator[tuple[slice, Tensor]]:
    """Which panels lie together, and these: views [bundles, pieces, quads, panels, 16, 4]."""
    lines = packed.view(order.bundles, order.panels, order.pieces * order.quads * PANEL * QUAD)
    for panels in order.blocks:
        count = panels.stop - panels.start
        yield panels, lines[:, panels].view(order.bundles, order.pieces, order.quads, count, PANEL, QUAD)


def _in_pieces(weight: Tensor, order: PackedOrder, groups: int) -> Tensor:
    """[bundles, channels of a bundle, pieces, bytes of a piece]."""
    channels, depth, *sizes = weight.shape
    rows, columns = _rows_and_columns(sizes)
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


_PACKED: ContextVar[dict[tuple[object, ...], list[Tensor]] | None] = ContextVar("packed weights", default=None)
"""Of the block of ``packed_once`` that runs: packed values by form and first bytes."""


@contextmanager
def packed_once() -> Iterator[None]:
    """Within the block, weights that are packed to equal bytes lie in memory once, however many layers hold them.

    A layer that is called at several places, or shares its weight, is several layers once it is quantized.
    """
    token = _PACKED.set({})
    try:
        yield
    finally:
        _PACKED.reset(token)


def _in_one_place(values: Tensor, form: tuple[object, ...]) -> Tensor:
    """Packed values, or equal ones that were packed before in this block."""
    known = _PACKED.get()
    if known is None or not values.numel():
        return values
    first = tuple(values.flatten()[:: max(1, values.numel() // LOOKED_AT)].tolist())
    alike = known.setdefault((*form, first), [])
    for other in alike:
        if torch.equal(other, values):
            return other
    alike.append(values)
    return values


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in packed order, and what is needed to undo that."""

    values: Tensor
    """As :func:`pack_weight` gives it."""
    shape: torch.Size
    """Of the weight."""
    groups: int = 1

    @classmethod
    def of(cls, weight: Tensor, groups: int = 1) -> PackedWeight:
        """Pack a weight: int8 [C_out, C_in / groups, *kernel_size]."""
        values = pack_weight(weight, groups)
        return cls(_in_one_place(values, (weight.shape, groups, weight.device)), weight.shape, groups)

    def unpacked(self) -> Tensor:
        """The weight as it was, in memory of its own."""
        channels, depth, *kernel_size = self.shape
        with torch.inference_mode(False), torch.no_grad():  # it may become the buffer of a module, which is written to
            return unpack_weight(self.values, channels, depth, kernel_size, self.groups)


def start_values(weight: Tensor, x_dtype: torch.dtype, x_zero_point: int) -> Tensor:
    """``-z * sum(weight[c])``, int32 [C_out], with the zero point ``z`` of ``x`` as a uint8 (an int8 moved by 128)."""
    zero_point = x_zero_point + (128 if x_dtype == torch.int8 else 0)
    rows = weight.flatten(1)
    several = rows.split(max(1, SUMMED_AT_ONCE // max(1, rows.shape[1])))  # a sum makes a copy in its own dtype first
    return torch.cat([part.sum(1, dtype=torch.int64) for part in several]).mul_(-zero_point).to(torch.int32)
