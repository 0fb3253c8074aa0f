"""The order in which the int8 convolutions read a weight: 16 output channels by 4 input channels lie together."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL = 16
"""Output channels that lie together: the 32 bit lanes of the widest register."""

QUAD = 4
"""Input channels that lie together: the bytes of a lane."""

FEW = 16
"""Input channels below which the taps of a window are gathered first, and multiplied as if they were one pixel."""


def packed_shape(channels: int, depth: int, taps: int, *, depthwise: bool = False) -> list[int]:
    """Shape of the packed weight of a convolution from ``depth`` channels (1 if depthwise) to ``channels``."""
    pieces, length = _pieces(depth, taps, depthwise)
    return [math.ceil(channels / PANEL), pieces * math.ceil(length / QUAD), PANEL, QUAD]


def _pieces(depth: int, taps: int, depthwise: bool) -> tuple[int, int]:
    """How many stretches of input channels a window is read in, and how long each is."""
    return (1, taps * depth) if taps > 1 and depth < FEW and not depthwise else (taps, depth)


def pack_weight(weight: Tensor, *, depthwise: bool = False) -> Tensor:
    """Reorder a weight.

    Args:
        weight: int8 [C_out, C_in, *kernel_size]; C_in is 1 if depthwise.
        depthwise: Whether it is that of a convolution of each channel by itself.

    Returns:
        int8 [ceil(C_out / 16), taps * ceil(C_in / 4), 16, 4], contiguous, zero where there is no channel; of a window
        of less than 16 channels, unless depthwise, [ceil(C_out / 16), ceil(taps * C_in / 4), 16, 4].
    """
    channels, depth = weight.shape[:2]
    taps = math.prod(weight.shape[2:])
    pieces, length = _pieces(depth, taps, depthwise)
    rows = weight.reshape(channels, depth, taps).transpose(1, 2).reshape(channels, pieces, length)
    padded = F.pad(rows, (0, -length % QUAD, 0, 0, 0, -channels % PANEL))
    split = padded.reshape(math.ceil(channels / PANEL), PANEL, pieces, math.ceil(length / QUAD), QUAD)
    order = split.permute(0, 2, 3, 1, 4)
    return order.reshape(packed_shape(channels, depth, taps, depthwise=depthwise)).contiguous()


def unpack_weight(
    packed: Tensor, channels: int, depth: int, kernel_size: tuple[int, ...], *, depthwise: bool = False
) -> Tensor:
    """What :func:`pack_weight` was given: int8 [channels, depth, *kernel_size]."""
    taps = math.prod(kernel_size)
    pieces, length = _pieces(depth, taps, depthwise)
    quads = math.ceil(length / QUAD)
    padded = packed.reshape(len(packed), pieces, quads, PANEL, QUAD).permute(0, 3, 1, 2, 4)
    rows = padded.reshape(len(packed) * PANEL, pieces, quads * QUAD)[:channels, :, :length]
    return rows.reshape(channels, taps, depth).transpose(1, 2).reshape(channels, depth, *kernel_size)


def start_values(weight: Tensor, x_dtype: torch.dtype, x_zero_point: int) -> Tensor:
    """``-z * sum(weight[c])``, int32 [C_out], with the zero point ``z`` of ``x`` as a uint8 (an int8 moved by 128)."""
    zero_point = x_zero_point + (128 if x_dtype == torch.int8 else 0)
    return (weight.flatten(1).sum(1, dtype=torch.int64) * -zero_point).to(torch.int32)
