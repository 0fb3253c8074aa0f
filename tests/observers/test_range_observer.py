"""RangeObserver: saving, loading, copying and forgetting the statistics."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.ao.quantization import observer as ao

from fxquant.errors import CalibrationError, SpecError
from fxquant.observers import (
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
)

MAKE = (
    MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric),
    MovingAverageMinMaxObserver.with_args(bits=6),
    PerChannelMinMaxObserver.with_args(ch_axis=-1, dtype=torch.qint8, qscheme=torch.per_channel_symmetric),
    PerChannelMinMaxObserver.with_args(ch_axis=0, group_size=2),
    MovingAveragePerChannelMinMaxObserver.with_args(ch_axis=1),
)


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    state, other_state = one.state_dict(), other.state_dict()
    assert list(state) == list(other_state) == ["eps", "min_val", "max_val", "nonfinite_count"]
    for name, value in state.items():
        assert torch.equal(value, other_state[name])
        assert value.dtype == other_state[name].dtype
    assert all(map(torch.equal, one.calculate_qparams(), other.calculate_qparams()))


def observed(make) -> nn.Module:
    observer = make()
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        observer(torch.randn(4, 6, generator=generator))
    observer(torch.tensor([[math.nan] * 6] * 4))
    return observer


@pytest.mark.parametrize("make", MAKE, ids=repr)
def test_state_goes_into_a_fresh_observer(make):
    observer, fresh = observed(make), make()
    held = fresh.min_val
    file = io.BytesIO()
    torch.save(observer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert str(fresh.load_state_dict(state, strict=True)) == "<All keys matched successfully>"
    assert_equal(observer, fresh)
    assert fresh.min_val is held
    assert fresh.nonfinite_count.item() == 24
    fresh(torch.full((4, 6), 100.0))
    observer(torch.full((4, 6), 100.0))
    assert_equal(observer, fresh)


@pytest.mark.parametrize("make", MAKE, ids=repr)
def test_copies(make):
    observer = observed(make)
    for twin in (copy.deepcopy(observer), pickle.loads(pickle.dumps(observer))):
        assert_equal(observer, twin)
        assert twin.scheme == observer.scheme
        twin(torch.full((4, 6), 1e3))
        assert not torch.equal(twin.max_val, observer.max_val)


@pytest.mark.parametrize("make", MAKE, ids=repr)
def test_reset(make):
    observer = observed(make)
    observer.reset_min_max_vals()
    fresh = make()
    assert all(map(torch.equal, observer.state_dict().values(), fresh.state_dict().values()))
    for unseen in (observer, fresh):
        with pytest.raises(CalibrationError, match=r"(no finite value was observed|has seen no data)\n  hint: "):
            unseen.calculate_qparams()


def test_states_of_torch_load():
    peer, ours = ao.PerChannelMinMaxObserver(), PerChannelMinMaxObserver()
    peer(torch.randn(3, 4))
    state = peer.state_dict()
    ours.load_state_dict(state)
    assert torch.equal(ours.min_val, peer.min_val)
    assert list(state) == ["eps", "min_val", "max_val"]
    assert all(torch.equal(a, b) for a, b in zip(ours.calculate_qparams(), peer.calculate_qparams(), strict=True))


def test_a_wrong_state_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch for min_val"):
        MinMaxObserver().load_state_dict(observed(MAKE[2]).state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*max_val"):
        MinMaxObserver().load_state_dict({"min_val": torch.tensor(0.0)})


def test_buffers_keep_their_identity_and_work_in_inference_mode():
    observer = PerChannelMinMaxObserver(ch_axis=0)
    held = observer.min_val
    with torch.inference_mode():
        observer(torch.randn(2, 3))
    observer(torch.randn(2, 3))
    assert observer.min_val is held
    assert not observer.min_val.is_inference()


def test_repr():
    assert repr(MinMaxObserver(torch.qint8)) == "MinMaxObserver(int8 affine per tensor, min_val=inf, max_val=-inf)"
    observer = PerChannelMinMaxObserver(ch_axis=1)
    assert repr(observer) == "PerChannelMinMaxObserver(uint8 affine per channel (axis 1), nothing observed)"
    observer(torch.tensor([[1.0, -2.0]]))
    assert repr(observer) == (
        "PerChannelMinMaxObserver(uint8 affine per channel (axis 1), 2 channels, min_val=-2, max_val=1)"
    )


def test_attributes_that_users_of_torch_read():
    observer = MinMaxObserver(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric, quant_min=-127, quant_max=127)
    assert (observer.dtype, observer.qscheme) == (torch.qint8, torch.per_tensor_symmetric)
    assert (observer.quant_min, observer.quant_max) == (-127, 127)
    assert (observer.reduce_range, observer.is_dynamic) == (False, False)
    assert observer.eps.tolist() == [torch.finfo(torch.float32).smallest_normal]
    channels = PerChannelMinMaxObserver(2, scheme=MAKE[2]().scheme)
    assert (channels.ch_axis, channels.dtype, channels.qscheme) == (-1, torch.qint8, torch.per_channel_symmetric)


def test_factory_kwargs_name_the_device():
    observer = MinMaxObserver(factory_kwargs={"device": "meta", "dtype": torch.float32})
    assert all(buffer.is_meta for buffer in observer.buffers())
    with pytest.raises(SpecError) as caught:
        PerChannelMinMaxObserver(factory_kwargs={"dtype": torch.float64})
    assert str(caught.value) == (
        "factory_kwargs says where the buffers live; statistics are float32\n"
        "  got:      {'dtype': torch.float64}\n"
        "  expected: {'device': ...}"
    )
