"""The memory order of results."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fxquant.kernels.layout import like


def test_strides_are_those_of_empty_like_and_the_tensor_is_new(view: Callable[[Tensor], Tensor]) -> None:
    x = view(torch.randn(3, 5, 4, 2))
    values = x.contiguous().double() * 2
    y = like(x, values)
    assert y.stride() == torch.empty_like(x).stride()
    assert y.dtype == torch.float64
    assert torch.equal(y, values)
    assert y is not values
