"""The order of packed weights."""

from __future__ import annotations

import math

import pytest
import torch

from fxquant.kernels.packing import pack_weight, packed_shape, start_values, unpack_weight


def weight(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "shape",
    [(16, 4), (1, 1), (17, 0), (17, 5), (40, 20, 1, 1), (33, 18, 3, 2), (16, 3, 7, 7), (5, 15, 2, 1), (5, 16, 2, 1)],
)
def test_unpacking_gives_the_weight_back(shape: tuple[int, ...]) -> None:
    packed = pack_weight(weight(*shape))

    assert packed.is_contiguous()
    assert list(packed.shape) == packed_shape(*shape[:2], math.prod(shape[2:]))
    assert torch.equal(unpack_weight(packed, *shape[:2], shape[2:]), weight(*shape))
    assert int(packed.long().sum()) == int(weight(*shape).long().sum())  # the rest is zero


def test_where_an_element_lies() -> None:
    w = weight(35, 18, 2, 3)
    packed = pack_weight(w)  # 18 channels are 5 quads

    assert packed.shape == (3, 2 * 3 * 5, 16, 4)
    assert packed[2, (1 * 3 + 2) * 5 + 4, 1, 1] == w[33, 17, 1, 2]


def test_where_an_element_of_few_channels_lies() -> None:
    w = weight(20, 3, 2, 3)
    packed = pack_weight(w)  # 18 bytes of a window are 5 quads

    assert packed.shape == (2, 5, 16, 4)
    at = (1 * 3 + 1) * 3 + 2
    assert packed[1, at // 4, 3, at % 4] == w[19, 2, 1, 1]


def test_depthwise_weights_lie_first_in_their_quads() -> None:
    w = weight(21, 1, 3, 2)
    packed = pack_weight(w, depthwise=True)

    assert list(packed.shape) == packed_shape(21, 1, 6, depthwise=True) == [2, 6, 16, 4]
    assert torch.equal(packed[1, :, 4, 0], w[20].flatten())
    assert not packed[..., 1:].any()
    assert torch.equal(unpack_weight(packed, 21, 1, (3, 2), depthwise=True), w)


def test_start_values_take_the_zero_point_off() -> None:
    w = weight(4, 7)
    sums = w.int().sum(1)

    assert torch.equal(start_values(w, torch.uint8, 9), -9 * sums.int())
    assert torch.equal(start_values(w, torch.int8, -9), -119 * sums.int())
    assert start_values(w, torch.uint8, 9).dtype == torch.int32
