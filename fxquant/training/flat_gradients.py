"""Gradients of several parameters as one tensor of the CPU, as ranks send them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def flat_like(parameters: Sequence[Tensor]) -> Tensor:
    """Return a tensor with the shape and dtype of the gradients of all parameters: float [values]."""
    dtype = functools.reduce(torch.promote_types, (each.dtype for each in parameters))
    return torch.empty(sum(each.numel() for each in parameters), dtype=dtype)


def flat_gradients(parameters: Sequence[Tensor], gradients: Iterable[Tensor | None]) -> Tensor:
    """Return the gradients of all parameters, one after the other; 0 where there is none."""
    like = flat_like(parameters)
    given = zip(parameters, gradients, strict=True)
    filled = [torch.zeros_like(each) if gradient is None else gradient for each, gradient in given]
    return torch.cat([each.detach().to("cpu", like.dtype).flatten() for each in filled])


def set_gradients(parameters: Sequence[Tensor], flat: Tensor) -> None:
    """Set the gradient of each parameter to its part of what ``flat_gradients`` gave, or of a sum of such tensors."""
    for each, part in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
        each.grad = part.view(each.shape).to(each.device, each.dtype)
