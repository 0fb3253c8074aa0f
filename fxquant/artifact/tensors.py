"""Tensors as a file holds them: each once, contiguous, with the order that its dimensions had in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.artifact.values import DTYPES
from fxquant.errors import ArtifactError


def stored_once(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Make tensors contiguous, each once; return them with their order in memory by name, or the name of the first.

    Floats are added up in an order that may depend on how a weight lies, so that is kept, too.
    """
    stored: dict[str, Tensor] = {}
    layouts: dict[str, Any] = {}
    seen: dict[int, str] = {}
    for name, tensor in tensors.items():
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided or tensor.is_meta:
            raise ArtifactError("a tensor cannot be written", at=name, got=f"{type(tensor).__name__}, {tensor.layout}")
        if tensor.dtype not in DTYPES.values():
            raise ArtifactError("a tensor of this dtype cannot be written", at=name, got=tensor.dtype)
        if id(tensor) in seen and not name.startswith("#"):
            layouts[name] = seen[id(tensor)]
            continue
        seen.setdefault(id(tensor), name)
        value = tensor.detach().cpu()
        strides = value.stride()
        order = [axis for _, axis in sorted((-step, axis) for axis, step in enumerate(strides))]
        turned = value.permute(order)
        if not value.is_contiguous() and turned.is_contiguous():
            layouts[name], value = order, turned
        stored[name] = value.contiguous()
    return stored, layouts
