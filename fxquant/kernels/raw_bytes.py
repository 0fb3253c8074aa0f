"""The bytes of a tensor's values, to compare or to hash them."""

from __future__ import annotations

import torch
from torch import Tensor


def raw_bytes(x: Tensor) -> Tensor:
    """Return the bytes of all values in the order of indices: uint8 [numel * element_size], no copy where x is dense.

    Args:
        x: Of any dtype, shape and strides.
    """
    flat = x.detach().contiguous().flatten()
    # A tensor of one element is contiguous whatever its stride, and torch views it as bytes only with a stride of 1.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)
