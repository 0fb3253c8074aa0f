"""``AdaRoundFakeQuantize``: soft rounding gives the weight back, hard rounding what V says, and V is kept."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from fxquant.errors import SpecError
from fxquant.fake_quantize import AdaRoundFakeQuantize, AdaroundFakeQuantizer, FakeQuantize
from fxquant.fake_quantize.adaround import LearnedRounding, OwnIntegersFakeQuantize
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.observers import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.plan.spec import QParams, QScheme

WEIGHT = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))
SIGMOID_ROUNDING = 1e-6
"""In steps: the inverse sigmoid, and the sigmoid of it, each round a few times in float32."""


def observed(**arguments: object) -> AdaRoundFakeQuantize:
    module = AdaRoundFakeQuantize(**arguments)
    module(WEIGHT)
    module.disable_observer()
    return module


@pytest.mark.parametrize("observer", [PerChannelMinMaxObserver, MinMaxObserver])
def test_soft_rounding_begins_with_the_float_weight(observer: type) -> None:
    module = observed(observer=observer)
    error = (module(WEIGHT) - WEIGHT).abs() / module.scale.max()
    inside = WEIGHT.abs() < 127 * module.scale.min()  # the largest value is half a step beyond the grid
    assert error[inside].max() < 10 * SIGMOID_ROUNDING * 127
    assert AdaroundFakeQuantizer is AdaRoundFakeQuantize


def test_hard_rounding_is_nearest_at_first_and_then_what_v_says() -> None:
    module = observed()
    module(WEIGHT)
    module.enable_weight_fake_quant()
    scale = module.scale.reshape(-1, 1, 1, 1)
    steps = WEIGHT * (1 / scale)
    nearest = torch.round(steps).clamp(-128, 127)
    no_tie = steps - torch.floor(steps) != 0.5  # the largest value of a channel: V is 0 there, which is up
    assert no_tie.sum() >= WEIGHT.numel() - len(WEIGHT)
    assert torch.equal(module.integers(WEIGHT).float()[no_tie], nearest[no_tie])
    with torch.no_grad():
        module.V.copy_(torch.randn(WEIGHT.shape, generator=torch.Generator().manual_seed(1)))
    expected = (torch.floor(WEIGHT * (1 / scale)) + (module.V >= 0)).clamp(-128, 127)
    assert not torch.equal(expected, nearest)
    assert torch.equal(module.integers(WEIGHT).float(), expected)
    assert torch.equal(module(WEIGHT), expected * scale)
    assert module.integers(WEIGHT).dtype == torch.int8


def test_gradients_reach_v_alone() -> None:
    module = observed()
    weight = WEIGHT.clone().requires_grad_()
    module(weight).square().sum().backward()
    assert weight.grad is None
    assert module.V.grad is not None
    assert module.V.grad.abs().sum() > 0


def test_v_is_set_once() -> None:
    module = observed()
    module(WEIGHT)
    before = module.V.detach().clone()
    module(2 * WEIGHT)
    assert torch.equal(module.V, before)
    scale = module.scale.clone()
    module.update_scale(2 * WEIGHT)
    assert torch.equal(module.scale, 2 * scale)
    assert torch.equal(module.V, before)  # the same fractions of twice the steps


def test_states_copies_and_devices_keep_v_and_the_grid() -> None:
    module = observed()
    module(WEIGHT)
    with torch.no_grad():
        module.V.mul_(-1)
    module.set_soft_rounding(False)
    fresh = AdaRoundFakeQuantize()
    fresh.load_state_dict(module.state_dict())
    for other in (fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), copy.deepcopy(module).double()):
        assert torch.equal(other.integers(WEIGHT), module.integers(WEIGHT))
        assert torch.equal(other(WEIGHT), module(WEIGHT))


def test_the_regulariser_has_room_at_both_ends() -> None:
    """The stretched sigmoid reaches 0 and 1 for finite V."""
    module = observed()
    module(WEIGHT)
    with torch.no_grad():
        module.V.fill_(5.0)
        assert module.rounding().min() == 1
        module.V.fill_(-5.0)
        assert module.rounding().max() == 0


def test_other_grids_are_refused() -> None:
    with pytest.raises(SpecError, match="symmetric qparams"):
        AdaRoundFakeQuantize(PerChannelMinMaxObserver, dtype=torch.int8)


def test_soft_rounding_begins_at_the_weight_within_the_limits_and_hard_rounding_stays_on_the_grid() -> None:
    """Values on a step, on the last one, beyond it, and half way."""
    weight = torch.tensor([-8.0, 7.49, 7.6, 0.0, 0.5, -0.3])
    module = AdaRoundFakeQuantize(MinMaxObserver, bits=4, dtype=torch.int8, qscheme="per_tensor_symmetric")
    module(weight)
    module.set_qparams(torch.ones(1), torch.zeros(1))
    module.disable_observer()
    assert torch.allclose(module(weight), weight.clamp(-8, 7), atol=10 * SIGMOID_ROUNDING, rtol=0.0)
    module.enable_weight_fake_quant()
    assert module.integers(weight).tolist()[:4] == [-8, 7, 7, 0]
    assert module.integers(weight)[4] in (0, 1)
    assert module.integers(weight)[5] in (-1, 0)
    assert torch.equal(module(weight), module.integers(weight).float())


QPARAMS = QParams(QScheme(symmetric=True, bits=4), torch.tensor([0.5]), torch.zeros(1, dtype=torch.int32))


class RoundsDown(nn.Module):
    """No fake-quantize class of fxquant: all that counts is what it can do."""

    def integers(self, x: Tensor) -> Tensor:
        return torch.floor(x / 0.5).clamp(-8, 7).to(torch.int8)

    def qparams(self) -> QParams:
        return QPARAMS


def test_what_has_integers_of_its_own_is_seen_by_what_it_can_do() -> None:
    assert isinstance(RoundsDown(), LearnedRounding)
    assert isinstance(AdaRoundFakeQuantize(), LearnedRounding)
    assert not isinstance(FakeQuantize(), LearnedRounding)


def test_values_are_its_own_and_the_gradient_is_straight_through() -> None:
    x = torch.tensor([0.9, -0.1, 0.5, 99.0], requires_grad=True)
    y = OwnIntegersFakeQuantize(RoundsDown())(x)
    assert y.tolist() == [0.5, -0.5, 0.5, 3.5]
    assert fake_quantize(x, QPARAMS.scale, QPARAMS.zero_point, QPARAMS.scheme).tolist() == [1.0, 0.0, 0.5, 3.5]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert OwnIntegersFakeQuantize(RoundsDown())(x.double()).dtype == torch.float64
