"""Dead channels, and the reach of the others, against looking at everything."""

from __future__ import annotations

import pytest
import torch

from fxquant.calibration.channel_extremes import SAMPLE, ChannelExtremes, Extremes


def show(found: ChannelExtremes, x: torch.Tensor) -> None:
    """As a batch that runs to its end."""
    assert found(x) is x
    found.keep()


SHAPES = [((2, 5, 9, 7), -3), ((4, 6, 5), -1), ((3, 8), -1), ((8,), -1), ((2, 4, 3, 5, 6), -4)]


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_small_tensors_are_looked_at_whole(shape, axis):
    torch.manual_seed(0)
    x = torch.randn(shape)
    found = ChannelExtremes(axis)
    show(found, x)
    others = [dim for dim in range(x.dim()) if dim != x.dim() + axis]
    assert torch.equal(found.low, x.amin(others) if others else x)
    assert torch.equal(found.high, x.amax(others) if others else x)


def test_a_channel_that_shows_one_value_among_millions_is_alive():
    x = torch.zeros(4, 8, 64, 64)
    assert x[0, 0].numel() * 8 > SAMPLE
    x[:, :4] = torch.randn(4, 4, 64, 64)
    x[3, 5, 63, 61] = 2.0
    found = ChannelExtremes(-3)
    show(found, x)
    assert torch.nonzero(found.constant()).flatten().tolist() == [4, 6, 7]
    assert found.high[5] == 2


def test_a_channel_that_comes_alive_later_is_no_longer_dead():
    found, x = ChannelExtremes(-1), torch.zeros(3, 4)
    for _ in range(20):
        show(found, x)
    assert found.constant().all()
    show(found, torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    assert found.constant().tolist() == [True, False, True, True]


def test_a_channel_that_changes_between_batches_is_alive():
    found = ChannelExtremes(-1)
    for value in (1.0, 2.0):
        show(found, torch.full((3, 2), value))
    assert not found.constant().any()


def test_values_that_are_not_finite_are_left_out():
    found = ChannelExtremes(-1)
    show(found, torch.tensor([[torch.nan, 1.0, torch.inf], [2.0, 1.0, -torch.inf], [3.0, torch.inf, torch.nan]]))
    assert found.low.tolist() == [2, 1, torch.inf]
    assert found.high.tolist() == [3, 1, -torch.inf]
    assert found.constant().tolist() == [False, True, False]


def test_an_empty_or_a_flat_tensor_changes_nothing():
    found = ChannelExtremes(-3)
    show(found, torch.zeros(0, 3, 2, 2))
    show(found, torch.zeros(3))
    assert (found.low.numel(), int(found.count)) == (0, 0)


def test_a_state_of_any_number_of_channels_can_be_loaded():
    found, twin = ChannelExtremes(-1), ChannelExtremes(-1)
    show(found, torch.tensor([[1.0, 2.0], [1.0, 3.0]]))
    twin.load_state_dict(found.state_dict())
    assert twin.constant().tolist() == [True, False]
    show(twin, torch.tensor([[5.0, 5.0]]))
    assert not twin.constant().any()


def test_parts_are_pooled():
    parts = [ChannelExtremes(-1) for _ in range(2)]
    show(parts[0], torch.tensor([[1.0, 2.0]]))
    show(parts[1], torch.tensor([[1.0, 3.0], [1.0, 3.0]]))
    unseen = ChannelExtremes(-1)
    states = [part.state_dict() for part in (*parts, unseen)]
    unseen.pool(states)
    assert (unseen.low.tolist(), unseen.high.tolist(), int(unseen.count)) == ([1, 2], [1, 3], 2)


def test_statistics_stay_float32():
    found = ChannelExtremes(-1)
    show(found, torch.ones(2, 3, dtype=torch.bfloat16))
    assert found.half().low.dtype == torch.float32


def test_a_batch_that_failed_is_forgotten():
    found = ChannelExtremes(-1)
    show(found, torch.tensor([[1.0, 2.0]]))
    found(torch.tensor([[5.0, 6.0]]))
    found.forget()
    found.keep()
    assert (found.low.tolist(), int(found.count)) == ([1, 2], 1)


def test_only_what_is_kept_counts():
    found, x = Extremes(), torch.tensor([[-1.0, 3.0], [0.0, 2.0]])
    assert found.ends.tolist() == [torch.inf, -torch.inf]
    assert found(x) is x
    found.keep()
    found(10 * x)
    found.forget()
    found.keep()
    found(torch.tensor(-2.0))
    found.keep()
    assert found.ends.tolist() == [-2, 3]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_values_that_are_not_finite_are_left_out_of_a_join(dtype):
    found = Extremes()
    for values in ([torch.nan, 1.0, torch.inf], [-torch.inf, -2.0], [torch.nan], []):
        found(torch.tensor(values, dtype=dtype))
        found.keep()
    assert found.ends.tolist() == [-2, 1]
    assert found.half().ends.dtype == torch.float32


def test_several_copies_are_pooled():
    seen = [Extremes() for _ in range(3)]
    for each, value in zip(seen[:2], (1.0, -5.0), strict=True):
        each(torch.tensor([value, 0.0]))
        each.keep()
    seen[2].pool([each.state_dict() for each in seen])
    assert seen[2].ends.tolist() == [-5, 1]


def test_a_state_from_before_they_were_kept_is_taken():
    assert Extremes().load_state_dict({}).missing_keys == []
