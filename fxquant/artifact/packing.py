"""Weights of few bits as a file holds them: two of 4 bits in a byte, or four of 2, the first in the lowest bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.artifact.format import Stored
from fxquant.errors import ArtifactError

WIDTHS = (2, 4)
"""Bits that a value may take. Values of 3 bits take 4."""
_FIELDS = {"bits", "signed", "shape", "order"}


def pack(values: Tensor, bits: int) -> Tensor | None:
    """Put several integers into each byte.

    Args:
        values: int8 or uint8, of any shape.
        bits: That each takes, 2 or 4; of an int8 in two's complement.

    Returns:
        uint8 [ceil(numel * bits / 8)], the first value in the lowest bits; None where a value needs more bits.
    """
    flat = values.reshape(-1)
    low = 0 if values.dtype == torch.uint8 else -(1 << bits - 1)
    if flat.numel() and not bool(((flat >= low) & (flat < low + (1 << bits))).all()):
        return None
    each = 8 // bits
    fields = nn.functional.pad(flat.view(torch.uint8) & (1 << bits) - 1, (0, -flat.numel() % each)).view(-1, each)
    packed = fields[:, 0].clone()
    for place in range(1, each):
        packed |= fields[:, place] << place * bits
    return packed


def unpack(packed: Tensor, bits: int, count: int, signed: bool) -> Tensor:
    """Return the ``count`` values that ``pack`` was given: int8 if ``signed``, else uint8."""
    mask = (1 << bits) - 1
    fields = torch.stack([packed >> place * bits & mask for place in range(8 // bits)], -1).flatten()[:count]
    if not signed:
        return fields.contiguous()
    half = 1 << bits - 1
    return (fields ^ half).view(torch.int8) - half


def packed_layout(value: Tensor, bits: int, order: list[int] | None) -> dict[str, Any]:
    """Describe a tensor that is packed: its shape as it lies in memory, and the order of its dimensions there."""
    return {"bits": bits, "signed": value.dtype == torch.int8, "shape": list(value.shape), "order": order}


def check_packed(layout: Mapping[str, Any], stored: Stored, name: str) -> None:
    """Refuse what is no description of a packed tensor, or of one of another size.

    Raises:
        ArtifactError: it says which tensor.
    """
    shape = layout.get("shape")
    sizes = isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**40 for n in shape)
    if set(layout) != _FIELDS or not sizes or layout["bits"] not in WIDTHS or not isinstance(layout["signed"], bool):
        raise ArtifactError("a packed tensor in the file is of no form", at=name, got=ascii(dict(layout))[:120])
    wanted = -(-math.prod(shape or ()) * layout["bits"] // 8)
    if stored.dtype != torch.uint8 or stored.shape != (wanted,):
        raise ArtifactError(
            "a packed tensor in the file has another size than its values",
            at=name,
            got=f"{stored.dtype} {list(stored.shape)}",
            expected=f"{torch.uint8} [{wanted}]",
        )


def unpacked(layout: Mapping[str, Any], packed: Tensor) -> Tensor:
    """Return the tensor that a layout describes, as it lies in memory."""
    count = math.prod(layout["shape"])
    return unpack(packed, layout["bits"], count, layout["signed"]).view(layout["shape"])
