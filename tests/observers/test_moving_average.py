"""MovingAverageMinMaxObserver and its per channel form."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.ao.quantization import observer as ao

from fxquant.errors import CalibrationError, SpecError
from fxquant.observers import MinMaxObserver, MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver

QSCHEMES = (torch.per_tensor_affine, torch.per_tensor_symmetric)
CHANNEL_QSCHEMES = (torch.per_channel_affine, torch.per_channel_symmetric, torch.per_channel_affine_float_qparams)


def batches(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 6, 5, generator=generator) * 3.0**seed * (1 + batch) for batch in range(5)]


def assert_same(ours, peer, data):
    for x in data:
        assert ours(x) is x
        peer(x)
    assert torch.equal(ours.min_val, peer.min_val)
    assert torch.equal(ours.max_val, peer.max_val)
    for mine, theirs in zip(ours.calculate_qparams(), peer.calculate_qparams(), strict=True):
        assert torch.equal(mine, theirs.to(mine.dtype))


@pytest.mark.parametrize("dtype", [torch.quint8, torch.qint8, torch.int16])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.37, 1.0, 0.0])
def test_per_tensor_equals_torch(dtype, rate):
    for seed, qscheme in itertools.product(range(6), QSCHEMES):
        arguments = {"averaging_constant": rate, "dtype": dtype, "qscheme": qscheme}
        assert_same(
            MovingAverageMinMaxObserver(**arguments), ao.MovingAverageMinMaxObserver(**arguments), batches(seed)
        )


@pytest.mark.parametrize("dtype", [torch.quint8, torch.qint8])
@pytest.mark.parametrize("rate", [0.01, 0.5])
def test_per_channel_equals_torch(dtype, rate):
    for seed, qscheme, ch_axis in itertools.product(range(4), CHANNEL_QSCHEMES, (0, 1, -1)):
        arguments = {"averaging_constant": rate, "ch_axis": ch_axis, "dtype": dtype, "qscheme": qscheme}
        peer = ao.MovingAveragePerChannelMinMaxObserver(**arguments)
        assert_same(MovingAveragePerChannelMinMaxObserver(**arguments), peer, batches(seed))


def test_first_batch_sets_the_range_and_later_ones_blend():
    observer = MovingAverageMinMaxObserver(averaging_constant=0.1)
    observer(torch.tensor([0.0, 10.0]))
    assert observer.max_val.item() == 10.0
    observer(torch.tensor([0.0, 20.0]))
    scale, zero_point = observer.calculate_qparams()
    assert observer.max_val.item() == 11.0
    assert (scale.item(), zero_point.item()) == (torch.tensor(11.0).div(255).item(), 0)


def test_with_constant_one_the_last_batch_wins():
    observer = MovingAverageMinMaxObserver(averaging_constant=1.0)
    for high in (10.0, 20.0, 5.0):
        observer(torch.tensor([0.0, high]))
    assert observer.max_val.item() == 5.0


def test_batch_without_a_finite_value_changes_nothing():
    observer = MovingAverageMinMaxObserver(averaging_constant=0.5)
    for values in ([math.nan, math.nan], [1.0, 2.0], [math.inf, math.nan], [3.0, 4.0, math.nan]):
        observer(torch.tensor(values))
    assert (observer.min_val.item(), observer.max_val.item()) == (2.0, 3.0)
    assert observer.nonfinite_count.item() == 5


def test_channel_without_a_finite_value_keeps_its_range():
    observer = MovingAveragePerChannelMinMaxObserver(averaging_constant=0.5, ch_axis=1)
    observer(torch.tensor([[math.nan, 2.0, math.nan]]))
    observer(torch.tensor([[1.0, math.inf, -math.inf]]))
    assert observer.min_val.tolist() == [1.0, 2.0, math.inf]
    assert observer.max_val.tolist() == [1.0, 2.0, -math.inf]
    with pytest.raises(CalibrationError, match=r"^no finite value was observed of channel 2\n"):
        observer.qparams()


def test_arguments_are_checked():
    assert issubclass(MovingAverageMinMaxObserver, MinMaxObserver)
    with pytest.raises(SpecError, match=r"averaging_constant is out of range\n  got:      1.5\n  expected: 0 to 1"):
        MovingAverageMinMaxObserver(averaging_constant=1.5)
    with pytest.raises(SpecError, match=r"got:      is_dynamic=True, averaging_constant=0.01\n"):
        MovingAverageMinMaxObserver(is_dynamic=True)
    assert MovingAverageMinMaxObserver(1.0, is_dynamic=True).is_dynamic


@pytest.mark.parametrize(
    "make",
    [MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver.with_args(ch_axis=0)],
    ids=["per tensor", "per channel"],
)
def test_pooled_averages_are_averaged_in_whatever_order(make):
    parts = [make() for _ in range(4)]
    for part, x in zip(parts[1:], batches(1), strict=False):  # one has nothing to see
        part(x)
    parts[1].nonfinite_count += 2
    states = [{name: value.clone() for name, value in part.state_dict().items()} for part in parts]
    seen = torch.stack([state["max_val"] for state in states[1:]])
    for order in itertools.permutations(states):
        pooled = make()
        pooled.pool(order)
        assert torch.equal(pooled.max_val, seen.double().sort(0).values.sum(0).div(3).float())
        assert pooled.nonfinite_count == 2
    again = pooled.state_dict()
    copies = [{name: value.clone() for name, value in again.items()}] * 3
    pooled.pool(copies)
    assert all(torch.equal(value, copies[0][name]) for name, value in pooled.state_dict().items())
