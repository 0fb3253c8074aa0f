"""The packed order of weights that are multiplied by floats, and back."""

from __future__ import annotations

import pytest
import torch

from fxquant.kernels.conv.packing import deduplicating_weights
from fxquant.kernels.linear.grouped_weight import GroupedWeight, bytes_of_group, dequantized, pack_grouped

SHAPES = [(1, 1, 1), (5, 7, 1), (16, 64, 2), (33, 66, 2), (3, 35, 5), (0, 8, 2), (4, 0, 1)]


def integers(channels: int, in_features: int, bits: int, dtype: torch.dtype) -> torch.Tensor:
    low = 0 if dtype == torch.uint8 else -(2 ** (bits - 1))
    generator = torch.Generator().manual_seed(channels)
    return torch.randint(low, low + 2**bits, (channels, in_features), dtype=torch.int32, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("bits", [2, 4, 5, 8])
@pytest.mark.parametrize(("channels", "in_features", "groups"), SHAPES)
def test_a_weight_comes_back(channels: int, in_features: int, groups: int, bits: int, dtype: torch.dtype) -> None:
    weight = integers(channels, in_features, bits, dtype)
    middle = 0 if dtype == torch.int8 else 1 << (3 if bits <= 4 else 7)
    qparams = torch.ones(channels, groups), torch.full((channels, groups), middle, dtype=torch.int32)
    packed = GroupedWeight.of(weight, *qparams, bits)
    assert packed.bits == (4 if bits <= 4 else 8)
    assert packed.zero_point is None
    panels = -(-channels // 16)
    assert packed.values.shape == (panels * groups * bytes_of_group(in_features // groups, packed.bits), 16)
    assert packed.values.is_contiguous()
    assert packed.unpacked().dtype == dtype
    assert torch.equal(packed.unpacked(), weight)


def test_where_values_lie() -> None:
    """Two values of a group share a byte, 16 channels lie side by side, and no byte holds values of two groups."""
    weight = torch.tensor([[1, -2, 3, 4, 5, 6], [7, -8, 0, -1, 2, -3]], dtype=torch.int8)
    packed = pack_grouped(weight, groups=2, bits=4)
    assert packed[:, :3].tolist() == [[0xE1, 0x87, 0], [0x03, 0x00, 0], [0x54, 0x2F, 0], [0x06, 0x0D, 0]]
    assert pack_grouped(weight, groups=2, bits=8)[1, :3].tolist() == [254, 248, 0]


def test_zero_points_of_any_group_and_one_scale_for_all() -> None:
    weight = integers(5, 12, 4, torch.uint8)
    scale, zero_point = torch.rand(5, 3) + 0.1, torch.arange(15, dtype=torch.int32).reshape(5, 3)
    packed = GroupedWeight.of(weight, scale, zero_point, 4)
    back = dequantized(packed.values, packed.scale, packed.zero_point, packed.bits, (5, 12))
    want = (weight.float().unflatten(1, (3, 4)) - zero_point[:, :, None]) * scale[:, :, None]
    assert torch.equal(back, want.flatten(1))
    one = GroupedWeight.of(weight, torch.tensor([0.5]), torch.tensor([3], dtype=torch.int32), 4)
    back = dequantized(one.values, one.scale, one.zero_point, one.bits, (5, 12))
    assert torch.equal(back, (weight.float() - 3) * 0.5)


def test_equal_weights_lie_in_memory_once() -> None:
    weight, scale, zero_point = integers(5, 12, 4, torch.int8), torch.ones(5), torch.zeros(5, dtype=torch.int32)
    with deduplicating_weights():
        first, second = (GroupedWeight.of(weight.clone(), scale, zero_point, 4) for _ in range(2))
        other = GroupedWeight.of(weight.clone(), scale, zero_point, 8)
    assert first.values is second.values
    assert other.values.shape != first.values.shape
