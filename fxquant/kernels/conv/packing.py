"""Packs the weight of an int8 convolution: a tile of all panels of an N block then reads it from begin to end."""

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
"""Output channels of a panel: the 32-bit lanes of the widest register."""

N_BLOCK_PANELS = 4
"""The most panels of an N block: as many as a tile has with AVX-512 VNNI. Without, it has two panels or one."""

K_GROUP = 4
"""Bytes of a K block that one 32-bit lane multiplies and adds."""

SUMMED_AT_ONCE = 1 << 16
"""Elements of a weight that are summed at a time, so that the sums take little memory beside the weight."""

SAMPLED = 64
"""Elements that are compared first: weights that differ in none of them are compared as a whole."""

FEW_CHANNELS = 16
"""With fewer input channels an ungrouped convolution reads a row of taps as one K block."""


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """How a packed weight is divided; csrc/conv/conv_shape.h says the same.

    A window is read in K blocks: parts that one pointer to the input leads to, each with its weights. A K block is

    * a tap (kernel element), as a rule;
    * a row of taps, if there are few input channels and no groups;
    * a column of taps, of all planes, if the convolution is depthwise.

    A K group is four bytes of a K block. As many groups as have at most 16 output channels together are bundled and
    become one product, if that number divides the number of groups: weights between different groups are zero.

    The panels of a group bundle are divided evenly into N blocks. Inside an N block the panels are interleaved, K group
    by K group: a K group for each channel of the first panel, of the second, and so on, then the next K group. So an N
    block is one stretch of memory, which a tile of all its panels reads from begin to end, and a matrix of
    [bytes / 4, channels, 4] as the instructions for tiles want it. A depthwise convolution has N blocks of one panel.
    """

    group_bundles: int
    panels: int
    """Panels of a group bundle."""
    k_blocks: int
    k_groups: int
    """K groups of a K block."""
    n_block_panels: int = N_BLOCK_PANELS
    """The most panels of an N block."""

    @classmethod
    def of(cls, channels: int, in_channels: int, kernel_size: Sequence[int], groups: int = 1) -> PackedLayout:
        """Return the layout for a convolution from ``in_channels`` to ``channels``, both counted over all groups."""
        rows, columns = _rows_and_columns(kernel_size)
        if is_depthwise(channels, in_channels, groups):
            return cls(1, math.ceil(channels / PANEL), columns, math.ceil(rows / K_GROUP), 1)
        group_bundles = groups // bundled_groups(channels, groups)
        panels = math.ceil(channels // group_bundles / PANEL)
        if groups == 1 and in_channels < FEW_CHANNELS and rows * columns > 1:
            return cls(1, panels, rows, math.ceil(columns * in_channels / K_GROUP))
        return cls(group_bundles, panels, rows * columns, math.ceil(in_channels // group_bundles / K_GROUP))

    @property
    def shape(self) -> list[int]:
        """Return the shape of the packed weight."""
        return [self.group_bundles * self.panels * self.k_blocks * self.k_groups, PANEL, K_GROUP]

    @property
    def n_blocks(self) -> list[slice]:
        """Return the panels of each N block of a group bundle."""
        count = max(1, math.ceil(self.panels / self.n_block_panels))
        ends = [i * self.panels // count for i in range(count + 1)]
        return [slice(first, last) for first, last in pairwise(ends)]


def _rows_and_columns(kernel_size: Sequence[int]) -> tuple[int, int]:
    """Return how many rows of taps a window has, in all its planes, and how many taps a row has."""
    return (math.prod(kernel_size[:-1]), kernel_size[-1]) if kernel_size else (1, 1)


def is_depthwise(channels: int, in_channels: int, groups: int) -> bool:
    """Tell whether each channel of the result is computed from the same channel of the input alone."""
    return 1 < groups == in_channels == channels


def bundled_groups(channels: int, groups: int) -> int:
    """Return how many groups a group bundle has: so many that they have at most 16 output channels together."""
    most = max(1, PANEL * groups // channels) if channels else 1
    return max(count for count in range(1, min(most, groups) + 1) if groups % count == 0)


def pack_weight(weight: Tensor, groups: int = 1) -> Tensor:
    """Reorder a weight.

    Args:
        weight: int8 [C_out, C_in / groups, *kernel_size], at most three sizes.
        groups: Groups of the convolution.

    Returns:
        int8 [group_bundles * panels * k_blocks * k_groups, 16, 4] as :class:`PackedLayout` says, contiguous, zero where
        there is no channel.
    """
    channels, in_channels, *kernel_size = weight.shape
    layout = PackedLayout.of(channels, in_channels * groups, kernel_size, groups)
    k_blocks = _in_k_blocks(weight, layout, groups)  # [group bundle, channel, K block, byte]
    widths = (0, -k_blocks.shape[3] % K_GROUP, 0, 0, 0, -k_blocks.shape[1] % PANEL)
    padded = F.pad(k_blocks, widths) if any(widths) else k_blocks  # by nothing it would be a copy, too
    split = padded.reshape(layout.group_bundles, layout.panels, PANEL, layout.k_blocks, layout.k_groups, K_GROUP)
    packed = weight.new_empty(layout.shape)
    for panels, block in _n_blocks(packed, layout):
        block.copy_(split[:, panels].permute(0, 3, 4, 1, 2, 5))
    return packed


def unpack_weight(
    packed: Tensor, channels: int, in_channels: int, kernel_size: Sequence[int], groups: int = 1
) -> Tensor:
    """Undo :func:`pack_weight`, in new memory: int8 [channels, in_channels, *kernel_size].

    Args:
        packed: The result of :func:`pack_weight`.
        channels: Channels of the result.
        in_channels: Input channels of one group.
        kernel_size: Sizes of the window.
        groups: Groups of the convolution.
    """
    layout = PackedLayout.of(channels, in_channels * groups, kernel_size, groups)
    taps, each = math.prod(kernel_size), channels // groups
    split = packed.new_empty((layout.group_bundles, layout.panels, PANEL, layout.k_blocks, layout.k_groups, K_GROUP))
    for panels, block in _n_blocks(packed, layout):
        split[:, panels].permute(0, 3, 4, 1, 2, 5).copy_(block)
    k_blocks = split.view(layout.group_bundles, layout.panels * PANEL, layout.k_blocks, layout.k_groups * K_GROUP)
    if is_depthwise(channels, in_channels * groups, groups):
        ordered = k_blocks[0, :channels, :, : taps // layout.k_blocks].transpose(1, 2)
    else:
        per_bundle = groups // layout.group_bundles
        bytes_of = k_blocks[:, : per_bundle * each, :, : per_bundle * in_channels * taps // layout.k_blocks]
        of_group = bytes_of.reshape(layout.group_bundles, per_bundle, each, taps, per_bundle, in_channels).diagonal(
            dim1=1, dim2=4
        )
        ordered = of_group.permute(0, 4, 1, 3, 2)  # [group bundle, group, channel, input channel, tap]
    weight = packed.new_empty((channels, in_channels, *kernel_size))
    weight.view(ordered.shape).copy_(ordered)
    return weight


def _n_blocks(packed: Tensor, layout: PackedLayout) -> Iterator[tuple[slice, Tensor]]:
    """Yield the panels of each N block, and a view of its weights.

    The view is [group_bundles, k_blocks, k_groups, panels, 16, 4].
    """
    # Cut into pieces as large as a panel. Panels of an N block are interleaved: some of these pieces are an N block.
    by_panel_size = packed.view(
        layout.group_bundles, layout.panels, layout.k_blocks * layout.k_groups * PANEL * K_GROUP
    )
    for panels in layout.n_blocks:
        count = panels.stop - panels.start
        sizes = (layout.group_bundles, layout.k_blocks, layout.k_groups, count, PANEL, K_GROUP)
        yield panels, by_panel_size[:, panels].view(sizes)


def _in_k_blocks(weight: Tensor, layout: PackedLayout, groups: int) -> Tensor:
    """Return the weight as [group_bundles, channels of a group bundle, k_blocks, bytes of a K block]."""
    channels, in_channels, *sizes = weight.shape
    rows, columns = _rows_and_columns(sizes)
    if is_depthwise(channels, in_channels * groups, groups):
        return weight.reshape(1, channels, rows, columns).transpose(2, 3)
    taps = weight.reshape(channels, in_channels, rows * columns).transpose(1, 2)  # [channel, tap, input channel]
    per_bundle = groups // layout.group_bundles
    if per_bundle == 1:
        length = rows * columns * in_channels // layout.k_blocks
        return taps.reshape(layout.group_bundles, channels // layout.group_bundles, layout.k_blocks, length)
    of_group = taps.reshape(layout.group_bundles, per_bundle, channels // groups, rows * columns, in_channels)
    bundle = weight.new_zeros(
        (layout.group_bundles, per_bundle, channels // groups, rows * columns, per_bundle, in_channels)
    )
    for i in range(per_bundle):
        bundle[:, i, :, :, i] = of_group[:, i]
    return bundle.reshape(
        layout.group_bundles, channels // layout.group_bundles, rows * columns, per_bundle * in_channels
    )


_PACKED: ContextVar[dict[tuple[object, ...], list[Tensor]] | None] = ContextVar("packed weights", default=None)
"""Inside ``deduplicating_weights``: form and sampled bytes -> the packed weights that have these."""


@contextmanager
def deduplicating_weights() -> Iterator[None]:
    """Within the block, weights that are packed to equal bytes lie in memory once, however many layers hold them.

    A layer that is called at several places, or shares its weight, is several layers once it is quantized.
    """
    token = _PACKED.set({})
    try:
        yield
    finally:
        _PACKED.reset(token)


def deduplicated(values: Tensor, form: tuple[object, ...]) -> Tensor:
    """Return packed values, or equal ones that were packed before in this block."""
    known = _PACKED.get()
    if known is None or not values.numel():
        return values
    first = tuple(values.flatten()[:: max(1, values.numel() // SAMPLED)].tolist())
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
    """The result of :func:`pack_weight`."""
    shape: torch.Size
    """Shape of the weight before it was packed."""
    groups: int = 1

    @classmethod
    def of(cls, weight: Tensor, groups: int = 1) -> PackedWeight:
        """Pack a weight: int8 [C_out, C_in / groups, *kernel_size]."""
        values = pack_weight(weight, groups)
        return cls(deduplicated(values, (weight.shape, groups, weight.device)), weight.shape, groups)

    def unpacked(self) -> Tensor:
        """Return the weight as it was, in memory of its own."""
        channels, in_channels, *kernel_size = self.shape
        with torch.inference_mode(False), torch.no_grad():  # it may become the buffer of a module, which is written to
            return unpack_weight(self.values, channels, in_channels, kernel_size, self.groups)


def zero_point_correction(weight: Tensor, x_dtype: torch.dtype, x_zero_point: int) -> Tensor:
    """Return ``-z * sum(weight[c])``, int32 [C_out]: where accumulators begin.

    ``z`` is the zero point of ``x`` read as uint8: for int8 it is 128 more.
    """
    zero_point = x_zero_point + (128 if x_dtype == torch.int8 else 0)
    rows = weight.flatten(1)
    several = rows.split(max(1, SUMMED_AT_ONCE // max(1, rows.shape[1])))  # a sum makes a copy in its own dtype first
    return torch.cat([part.sum(1, dtype=torch.int64) for part in several]).mul_(-zero_point).to(torch.int32)
