"""Shape and layout of the result of two tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.elementwise.binary import AddCall, broadcast_shape

SIZES = st.lists(st.sampled_from([0, 1, 2, 3]), max_size=4)


def result_of(a: Tensor, b: Tensor) -> Tensor:
    return AddCall(a, 0.1, 0, b, 0.1, 0, 0.1, 0, 0, 255).empty_result()


def byte(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


@settings(deadline=None)
@given(SIZES, SIZES)
def test_shapes_broadcast_as_in_torch(a: list[int], b: list[int]) -> None:
    try:
        expected = torch.broadcast_shapes(a, b)
    except RuntimeError:
        with pytest.raises(KernelError, match="a and b do not broadcast"):
            broadcast_shape("fxquant::op", byte(*a), byte(*b))
    else:
        assert broadcast_shape("fxquant::op", byte(*a), byte(*b)) == expected
        assert result_of(byte(*a), byte(*b)).shape == expected


def test_the_layout_is_that_of_the_input_that_is_not_repeated() -> None:
    image = byte(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    for a, b in ((image, byte(2, 3, 4, 5)), (image, byte(5)), (byte(3, 1, 1), image)):
        assert result_of(a, b).stride() == image.stride()
    assert result_of(byte(2, 3, 4, 5), image).is_contiguous()
    assert result_of(image[:, :1], image[:1]).is_contiguous()
