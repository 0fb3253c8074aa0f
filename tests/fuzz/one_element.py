"""The control of axes with one element: their strides mean nothing, but decide how torch lays out what it computes.

An in-place operator keeps them where the out-of-place one does not, and a convolution takes another algorithm, with
other last bits, for a tensor of one channel that counts as channels_last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tests.fuzz.rounding import is_view


class OneElementStrides(TorchDispatchMode):
    """While it is entered, operators see axes of one element with the strides that a contiguous tensor has there."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if is_view(func):
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map_only(Tensor, _with_strides, (args, dict(kwargs or {})))
        return func(*args, **kwargs)


def _with_strides(value: Tensor) -> Tensor:
    if 1 not in value.shape:
        return value
    return value.as_strided(value.shape, contiguous_at_ones(value.shape, value.stride()), value.storage_offset())


def contiguous_at_ones(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Strides in which an axis of one element has the extent of the axes behind it; the others stay."""
    result, extent = list(strides), 1
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            result[axis] = extent
        extent = max(extent, shape[axis] * result[axis])
    return result


@contextmanager
def one_element_strides() -> Iterator[None]:
    """Run models with strides of one-element axes that do not hang on the operator before."""
    with torch.no_grad(), OneElementStrides():
        yield
