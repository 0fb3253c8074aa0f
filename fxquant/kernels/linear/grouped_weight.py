"""A weight of 4 or 8 bits as ``fxquant::weight_only_linear`` reads it: 16 output features side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.kernels.conv.packing import PANEL, deduplicated

HALF_BITS = 4
"""Bits of quantized values of which two share a byte."""


def bytes_of_group(group_size: int, bits: int) -> int:
    """Return how many bytes the values of a group take, for one output feature."""
    return math.ceil(group_size / 2) if bits == HALF_BITS else group_size


def pack_grouped(weight: Tensor, groups: int, bits: int) -> Tensor:
    """Reorder a weight.

    Args:
        weight: int8 [out_features, in_features]; of 4 bits, from -8 to 7.
        groups: Into which the rows are divided.
        bits: 4: two values lie in a byte, the first one in the lower half. 8: one.

    Returns:
        uint8 [panels * groups * bytes of a group, 16], contiguous, zero where there is no output feature.
    """
    channels, in_features = weight.shape
    values = weight.reshape(channels, groups, in_features // groups).view(torch.uint8)
    if bits == HALF_BITS:
        halves = F.pad(values & 15, (0, values.shape[2] % 2))
        values = halves[:, :, ::2] | (halves[:, :, 1::2] << HALF_BITS)
    padded = F.pad(values, (0, 0, 0, 0, 0, -channels % PANEL))
    panels = padded.reshape(len(padded) // PANEL, PANEL, groups * values.shape[2])
    return panels.transpose(1, 2).reshape(-1, PANEL).contiguous()


def unpack_grouped(packed: Tensor, channels: int, in_features: int, groups: int, bits: int) -> Tensor:
    """Undo :func:`pack_grouped`, in new memory: int8 [channels, in_features]."""
    size = bytes_of_group(in_features // groups, bits)
    panels = math.ceil(channels / PANEL)
    rows = packed.reshape(panels, groups * size, PANEL).transpose(1, 2).reshape(panels * PANEL, groups, size)
    values = rows[:channels]
    if bits == HALF_BITS:
        halves = torch.stack([values & 15, values >> HALF_BITS], -1).flatten(2)[:, :, : in_features // groups]
        return ((halves ^ 8).to(torch.int8) - 8).reshape(channels, in_features)
    return values.reshape(channels, in_features).view(torch.int8).clone()


def panels_of(qparams: Tensor) -> Tensor:
    """Bring scales or zero points [channels, groups] into the order of the operator: [groups, panels * 16]."""
    return F.pad(qparams, (0, 0, 0, -len(qparams) % PANEL)).t().contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class GroupedWeight:
    """A packed weight with its qparams, as the operator takes them."""

    values: Tensor
    """As :func:`pack_grouped` gives it."""
    scale: Tensor
    """float32 [groups, panels * 16]."""
    zero_point: Tensor | None
    """int8, of the same shape; None: all are 0."""
    bits: int
    shape: torch.Size
    """Of the weight."""
    moved: int
    """What was taken from unsigned values to make them signed."""

    @classmethod
    def of(cls, weight: Tensor, scale: Tensor, zero_point: Tensor, bits: int) -> GroupedWeight:
        """Pack a weight.

        Args:
            weight: uint8 or int8 [out_features, in_features].
            scale: float32 [1], [out_features] or [out_features, groups].
            zero_point: int32, of the same shape; a value that the weight may have.
            bits: Of a quantized value, at most 8.
        """
        stored = HALF_BITS if bits <= HALF_BITS else 8
        moved = 0 if weight.dtype == torch.int8 else 1 << (stored - 1)
        signed = weight if not moved else (weight.to(torch.int16) - moved).to(torch.int8)
        groups = scale.shape[1] if scale.dim() == 2 else 1
        scale, zero_point = (x.reshape(len(x), groups).expand(len(weight), groups) for x in (scale, zero_point))
        values = pack_grouped(signed, groups, stored)
        points = panels_of((zero_point - moved).to(torch.int8)) if bool((zero_point != moved).any()) else None
        form = ("groups", weight.shape, groups, stored, weight.device)
        return cls(deduplicated(values, form), panels_of(scale), points, stored, weight.shape, moved)

    def unpacked(self) -> Tensor:
        """Return the weight as it was, in memory of its own."""
        with torch.inference_mode(False), torch.no_grad():  # it may become the buffer of a module, which is written to
            channels, in_features = self.shape
            signed = unpack_grouped(self.values, channels, in_features, len(self.scale), self.bits)
            return signed if not self.moved else (signed.to(torch.int16) + self.moved).to(torch.uint8)


def dequantized(weight: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, shape: tuple[int, int]) -> Tensor:
    """Return ``(q - zero_point) * scale``, float32 of a shape, of what the operator is given."""
    channels, groups = shape[0], len(scale)
    integers = unpack_grouped(weight, *shape, groups, bits)
    grouped = integers.to(torch.float32).reshape(channels, groups, shape[1] // groups)
    if zero_point is not None:
        grouped = grouped - zero_point[:, :channels].t()[:, :, None]
    return (grouped * scale[:, :channels].t()[:, :, None]).flatten(1)
