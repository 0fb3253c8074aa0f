"""The order of packed weights."""

from __future__ import annotations

import pytest
import torch

from fxquant.kernels.conv.packing import (
    PackedLayout,
    PackedWeight,
    deduplicating_weights,
    pack_weight,
    unpack_weight,
    zero_point_correction,
)


def weight(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        *((shape, 1) for shape in [(16, 4), (1, 1), (17, 0), (17, 5), (40, 20, 1, 1), (33, 18, 3, 2), (16, 3, 7, 7)]),
        *((shape, 1) for shape in [(5, 15, 2, 1), (5, 16, 2, 1), (0, 3, 2, 2), (21, 7, 5)]),
        *(((64, 4, 3, 3), 16), ((42, 5, 3, 2), 6), ((140, 36, 1, 1), 2), ((14, 3, 2, 2), 7), ((36, 1, 3, 3), 12)),
        *(((21, 1, 3, 2), 21), ((70, 1, 9, 1), 70)),
        *(
            ((20, 18, 2, 3, 4), 1),
            ((20, 3, 2, 3, 4), 1),
            ((21, 1, 2, 3, 4), 21),
            ((42, 5, 2, 1, 2), 6),
            ((0, 3, 1, 1, 1), 3),
        ),
    ],
)
def test_unpacking_gives_the_weight_back(shape: tuple[int, ...], groups: int) -> None:
    packed = pack_weight(weight(*shape), groups)

    assert packed.is_contiguous()
    assert list(packed.shape) == PackedLayout.of(shape[0], shape[1] * groups, shape[2:], groups).shape
    assert torch.equal(unpack_weight(packed, *shape[:2], shape[2:], groups), weight(*shape))
    assert int(packed.long().sum()) == int(weight(*shape).long().sum())  # the rest is zero


def test_where_an_element_lies() -> None:
    w = weight(35, 18, 2, 3)
    packed = pack_weight(w)  # 18 channels are 5 K groups

    assert packed.shape == (3 * 2 * 3 * 5, 16, 4)
    assert packed.reshape(2 * 3 * 5, 3, 16, 4)[(1 * 3 + 2) * 5 + 4, 2, 1, 1] == w[33, 17, 1, 2]


def test_panels_are_divided_evenly_into_blocks() -> None:
    w = weight(9 * 16, 20)
    packed = pack_weight(w)  # 5 K groups; N blocks of 3, 3 and 3 panels

    assert PackedLayout.of(9 * 16, 20, ()).n_blocks == [slice(0, 3), slice(3, 6), slice(6, 9)]
    assert PackedLayout.of(10 * 16, 20, ()).n_blocks == [slice(0, 3), slice(3, 6), slice(6, 10)]
    block = packed.reshape(3, 5, 48, 4)[1]
    assert torch.equal(block.transpose(0, 1).reshape(48, 20), w[48:96])


def test_where_an_element_of_few_channels_lies() -> None:
    w = weight(20, 3, 2, 3)
    packed = pack_weight(w)  # the 9 bytes of a row of taps are 3 K groups

    assert packed.shape == (2 * 2 * 3, 16, 4)
    at = 1 * 3 + 2  # in the second row
    assert packed.reshape(2 * 3, 2, 16, 4)[3 + at // 4, 1, 3, at % 4] == w[19, 2, 1, 1]


def test_columns_of_a_depthwise_window_lie_in_k_groups() -> None:
    w = weight(21, 1, 5, 2)
    packed = pack_weight(w, 21)

    assert packed.shape == (2 * 2 * 2, 16, 4)
    packed = packed.reshape(2, 2 * 2, 16, 4)
    assert torch.equal(packed[1, :2, 4].flatten()[:5], w[20, 0, :, 0])
    assert torch.equal(packed[1, 2:, 4].flatten()[:5], w[20, 0, :, 1])


def test_small_groups_share_a_panel() -> None:
    w = weight(64, 6, 3, 3)
    packed = pack_weight(w, 16)  # 4 groups of 6 channels, 24 bytes of a tap

    assert packed.shape == (4 * 9 * 6, 16, 4)
    packed = packed.reshape(4, 9 * 6, 16, 4)
    tap = packed[2, 5 * 6 : 6 * 6, 7].flatten()  # of the second group of its bundle
    assert torch.equal(tap[6:12], w[39, :, 1, 2])
    assert not tap[:6].any()
    assert not tap[12:].any()


def test_large_groups_have_panels_of_their_own() -> None:
    w = weight(40, 5, 1, 1)
    packed = pack_weight(w, 2)

    assert packed.shape == (2 * 2 * 2, 16, 4)
    packed = packed.reshape(2, 2, 2, 16, 4)  # [group, K group, panel]
    assert torch.equal(packed[1, :, 1, 2].flatten()[:5], w[38, :, 0, 0])
    assert not packed[1, :, 1, 4:].any()


def test_zero_point_corrections_take_the_zero_point_off() -> None:
    w = weight(4, 7)
    sums = w.int().sum(1)

    assert torch.equal(zero_point_correction(w, torch.uint8, 9), -9 * sums.int())
    assert torch.equal(zero_point_correction(w, torch.int8, -9), -119 * sums.int())
    assert zero_point_correction(w, torch.uint8, 9).dtype == torch.int32


def test_planes_of_a_window_lie_like_more_rows() -> None:
    for shape, groups in (((20, 18, 2, 3, 4), 1), ((20, 3, 2, 3, 4), 1), ((21, 1, 2, 3, 4), 21)):
        volume = weight(*shape)
        assert torch.equal(pack_weight(volume, groups), pack_weight(volume.flatten(2, 3), groups))


def test_equal_weights_are_packed_once_within_a_block():
    one, other = weight(40, 20, 3, 3), weight(40, 20, 3, 3)
    near = weight(40, 20, 3, 3)
    near[7, 7, 1, 1] ^= 1
    with deduplicating_weights():
        packed = [PackedWeight.of(each) for each in (one, other, near, weight(40, 20, 9))]
    assert packed[0].values is packed[1].values
    assert len({each.values.data_ptr() for each in packed}) == 3
    assert torch.equal(packed[2].unpacked(), near)
    assert PackedWeight.of(one).values is not packed[0].values  # the block is over
