"""The switches: buffers that are saved and broadcast, remembered until they are written to."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from fxquant.fake_quantize import (
    FakeQuantize,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
)

X = torch.linspace(-1, 1, 50)


def calibrated() -> FakeQuantize:
    module = FakeQuantize()
    module(X)
    return module


def test_both_are_on_at_first_and_are_buffers_of_one_byte() -> None:
    module = FakeQuantize()
    for name in ("fake_quant_enabled", "observer_enabled"):
        switch = module.state_dict()[name]
        assert switch.tolist() == [1]
        assert switch.dtype == torch.uint8


def test_they_may_be_made_and_turned_in_inference_mode() -> None:
    with torch.inference_mode():
        module = FakeQuantize()
        assert not torch.equal(module(X), X)
        module.fake_quant_enabled[0] = 0  # tensors made here do not count how often they are written to
        assert torch.equal(module(X), X)
        module.enable_fake_quant()
        assert not torch.equal(module(X), X)


def test_they_are_turned_by_apply() -> None:
    model = nn.Sequential(nn.Linear(50, 50), calibrated())
    model.apply(disable_fake_quant)
    assert torch.equal(model[1](X), X)
    model.apply(enable_fake_quant)
    assert not torch.equal(model[1](X), X)
    model.apply(disable_observer)
    before = model[1].scale.clone()
    model[1](9 * X)
    assert torch.equal(model[1].scale, before)
    model.apply(enable_observer)
    model[1](9 * X)
    assert not torch.equal(model[1].scale, before)


def test_a_buffer_that_is_written_to_counts() -> None:
    """As torch.ao's users do, and DistributedDataParallel."""
    module = calibrated()
    module.fake_quant_enabled[0] = 0
    assert torch.equal(module(X), X)
    module.fake_quant_enabled.copy_(torch.ones(1))
    assert not torch.equal(module(X), X)
    module.fake_quant_enabled = torch.zeros(1, dtype=torch.uint8)
    assert torch.equal(module(X), X)


def test_they_are_loaded_copied_and_pickled() -> None:
    module = calibrated()
    module.disable_fake_quant()
    loaded = FakeQuantize()
    loaded.load_state_dict(module.state_dict())
    for other in (loaded, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(X), X)
        other.enable_fake_quant()
        assert not torch.equal(other(X), X)
    assert torch.equal(module(X), X)  # the copies have switches of their own


def test_they_are_read_before_a_module_is_compiled() -> None:
    module = calibrated()
    module.disable_observer()
    module.disable_fake_quant()
    copied = copy.deepcopy(module)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(copied, backend="aot_eager", fullgraph=True)(X), X)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_casting_a_model_leaves_grid_and_switches_alone(dtype: torch.dtype) -> None:
    module = calibrated().to(dtype)
    assert module.scale.dtype == torch.float32
    assert module.fake_quant_enabled.dtype == torch.uint8
    assert module(X.to(dtype)).dtype == dtype


def test_shapes_are_right_on_the_meta_device() -> None:
    module = calibrated().to("meta")
    module.enable_fake_quant()
    module.disable_observer()
    assert module(torch.empty(3, 4, device="meta")).shape == (3, 4)
