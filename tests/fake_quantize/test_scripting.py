"""``torch.jit.script``: every preset computes, learns its grid, is switched, saved and loaded as outside."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fxquant import fake_quantize
from fxquant.errors import SpecError
from fxquant.fake_quantize import (
    AdaRoundFakeQuantize,
    FakeQuantize,
    LearnableFakeQuantize,
    default_fused_act_fake_quant,
    default_histogram_fake_quant,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
)
from fxquant.observers import PerChannelMinMaxObserver

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning")

PRESETS = [
    name
    for name in fake_quantize.__all__
    if name.startswith(("default_", "fused_")) and name != "default_histogram_fake_quant"
]


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 10, generator=generator) * (i + 1) for i in range(3)]


def same_state(scripted: nn.Module, eager: nn.Module) -> bool:
    mine, right = scripted.state_dict(), eager.state_dict()
    return mine.keys() == right.keys() and all(torch.equal(mine[key], right[key]) for key in right)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_scripted(name: str) -> None:
    eager = nn.Sequential(getattr(fake_quantize, name)())
    scripted = torch.jit.script(copy.deepcopy(eager))
    for x in batches():
        mine, right = x.clone().requires_grad_(), x.clone().requires_grad_()
        results = scripted(mine), eager(right)
        assert torch.equal(*results)
        for result in results:
            result.sum().backward()
        assert torch.equal(mine.grad, right.grad)
    assert same_state(scripted, eager)


@pytest.mark.parametrize("name", ["default_fake_quant", "default_fused_act_fake_quant"])
def test_it_is_switched_by_apply_also_when_loaded_again(name: str) -> None:
    eager = nn.Sequential(getattr(fake_quantize, name)())
    scripted = torch.jit.script(copy.deepcopy(eager))
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    x = batches()[0]
    switches: list[Callable[[nn.Module], None]] = [
        enable_observer, disable_fake_quant, disable_observer, enable_fake_quant, enable_observer, disable_observer,
    ]  # fmt: skip
    for model in (scripted, torch.jit.load(file)):
        reference = copy.deepcopy(eager)
        for step, switch in enumerate(switches):
            model.apply(switch)
            reference.apply(switch)
            assert torch.equal(model(x * (step + 1)), reference(x * (step + 1)))
        assert same_state(model, reference)


def test_scripting_leaves_the_model_alone() -> None:
    """Its buffers are shared with the scripted one, as torch does it."""
    model = nn.Sequential(FakeQuantize())
    scripted = torch.jit.script(model)
    x = batches()[0]
    scripted(x)
    assert type(model[0]) is FakeQuantize
    model.apply(disable_observer)
    assert torch.equal(model(3 * x), scripted(3 * x))


def test_what_is_no_fake_quantize_is_left_alone() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    scripted.apply(disable_fake_quant)


def test_a_histogram_is_scripted_once_it_is_calibrated() -> None:
    module = default_histogram_fake_quant()
    x = batches()[0]
    module(x)
    with pytest.raises(SpecError) as caught:
        torch.jit.script(nn.Sequential(module))
    assert str(caught.value) == (
        "this observer cannot measure in TorchScript\n"
        "  got:      HistogramObserver\n"
        "  expected: MinMaxObserver, MovingAverageMinMaxObserver, theirs per channel, or fixed qparams\n"
        "  hint:     with disable_observer() first, any calibrated fake-quantize module can be scripted"
    )
    module.disable_observer()
    assert torch.equal(torch.jit.script(module)(x), module(x))


@pytest.mark.parametrize("kind", [AdaRoundFakeQuantize, LearnableFakeQuantize])
def test_what_cannot_be_scripted_says_so(kind: type) -> None:
    with pytest.raises(SpecError) as caught:
        torch.jit.script(kind())
    assert str(caught.value) == (
        "this fake-quantize module cannot be scripted\n"
        f"  got:      {kind.__name__}\n"
        "  hint:     torch.compile and torch.export take it; FakeQuantize can be scripted"
    )


def test_groups_are_not_for_torchscript() -> None:
    module = FakeQuantize(PerChannelMinMaxObserver, group_size=5)
    module(batches()[0])
    module.disable_observer()
    with pytest.raises(torch.jit.Error, match="TorchScript knows no qparams per group"):
        torch.jit.script(module)(batches()[0])


def test_an_empty_batch_changes_nothing() -> None:
    scripted = torch.jit.script(default_fused_act_fake_quant())
    before = {name: value.clone() for name, value in scripted.state_dict().items()}
    assert scripted(torch.empty(0, 3)).shape == (0, 3)
    assert all(torch.equal(value, before[name]) for name, value in scripted.state_dict().items())
