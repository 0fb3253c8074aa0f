"""The means of channels: of any layout, in any number of batches, in any dtype, whatever else the values hold."""

from __future__ import annotations

import copy

import pytest
import torch

from fxquant.errors import InputError
from fxquant.observers.channel_means import ChannelMeans

ROUNDING = 1e-6
"""Of float32 sums of some hundred values of the order of 1."""


def observed(axis: int, *batches: torch.Tensor) -> ChannelMeans:
    means = ChannelMeans(axis)
    for batch in batches:
        assert means(batch) is batch
    return means


@pytest.mark.parametrize(
    ("shape", "axis"), [((5, 3), -1), ((3,), -1), ((2, 7, 3), -1), ((2, 3, 5), -2), ((2, 3, 5, 4), -3), ((3, 5, 4), -3)]
)
def test_the_mean_over_all_other_dimensions_and_batches(shape, axis):
    torch.manual_seed(0)
    batches = [torch.rand(shape), torch.rand(shape).add_(1)]
    rows = torch.cat([batch.double().movedim(axis, 0).reshape(3, -1) for batch in batches], 1)
    found = observed(axis, *batches).means()
    assert found is not None
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, rows.mean(1), rtol=0, atol=ROUNDING)


def test_batches_count_by_their_size():
    found = observed(-1, torch.zeros(3, 2), torch.ones(1, 2)).means()
    torch.testing.assert_close(found, torch.full((2,), 0.25, dtype=torch.float64))


def test_memory_order_does_not_matter():
    x = torch.arange(48.0).reshape(2, 3, 2, 4)
    assert torch.equal(observed(-3, x).total, observed(-3, x.to(memory_format=torch.channels_last)).total)


def test_half_precision_neither_overflows_nor_loses_digits():
    found = observed(-1, torch.full((4096, 1), 100.0, dtype=torch.float16)).means()
    assert found.item() == 100


def test_what_is_not_finite_counts_as_zero():
    x = torch.tensor([[1.0, 2.0], [float("inf"), 4.0], [float("nan"), 6.0], [-float("inf"), 8.0]])
    assert observed(-1, x).means().tolist() == [0.25, 5.0]


def test_nothing_seen():
    assert ChannelMeans(-1).means() is None
    assert observed(-1, torch.empty(0, 3)).means() is None


def test_state_and_casts():
    seen = observed(-1, torch.tensor([[1.0, 3.0]]))
    loaded = ChannelMeans(-1)
    loaded.load_state_dict(seen.state_dict())
    assert loaded.means().tolist() == [1.0, 3.0]
    loaded(torch.tensor([[3.0, 3.0]]))
    assert loaded.means().tolist() == [2.0, 3.0]
    assert seen.means().tolist() == [1.0, 3.0]
    assert copy.deepcopy(seen).half().total.dtype == torch.float64
    seen.load_state_dict(ChannelMeans(-1).state_dict())
    assert seen.means() is None


def test_another_number_of_channels():
    seen = observed(-1, torch.tensor([[1.0, 3.0]]))
    with pytest.raises(InputError) as caught:
        seen(torch.ones(2, 3))
    assert str(caught.value) == (
        "the number of channels differs from that of earlier batches\n"
        "  got:      3 channels in a tensor of shape (2, 3)\n"
        "  expected: 2 channels"
    )
    assert seen.means().tolist() == [1.0, 3.0]


def test_a_tensor_without_the_dimension():
    seen = observed(-3, torch.ones(2, 3, 1, 1))
    with pytest.raises(InputError) as caught:
        seen(torch.ones(3, 8))
    assert str(caught.value) == (
        "a tensor has too few dimensions for the operator that reads it\n"
        "  got:      2 in a tensor of shape (3, 8)\n"
        "  expected: at least 3"
    )


def test_parts_of_the_data_are_pooled_once():
    torch.manual_seed(0)
    parts, whole = [ChannelMeans(-1) for _ in range(3)], ChannelMeans(-1)
    for _ in range(2):
        for part in parts[1:]:
            x = torch.randn(4, 3)
            part(x), whole(x)
        states = [copy.deepcopy(part.state_dict()) for part in parts]
        for turn, part in enumerate(parts):
            part.pool(states[turn:] + states[:turn])
        assert all(torch.equal(part.total, parts[0].total) for part in parts)
        assert all(part.count == whole.count for part in parts)
        assert torch.allclose(parts[0].means(), whole.means(), atol=ROUNDING)
