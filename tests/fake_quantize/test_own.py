"""Integers that a module of its own knows: the values are theirs, the gradient that of nearest rounding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxquant.fake_quantize import AdaRoundFakeQuantize, FakeQuantize
from fxquant.fake_quantize.own import OwnIntegers, OwnIntegersFakeQuantize
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.plan.spec import QParams, QScheme

QPARAMS = QParams(QScheme(symmetric=True, bits=4), torch.tensor([0.5]), torch.zeros(1, dtype=torch.int32))


class RoundsDown(nn.Module):
    """No fake-quantize class of fxquant: all that counts is what it can do."""

    def integers(self, x: Tensor) -> Tensor:
        return torch.floor(x / 0.5).clamp(-8, 7).to(torch.int8)

    def qparams(self) -> QParams:
        return QPARAMS


def test_what_has_integers_of_its_own_is_seen_by_what_it_can_do() -> None:
    assert isinstance(RoundsDown(), OwnIntegers)
    assert isinstance(AdaRoundFakeQuantize(), OwnIntegers)
    assert not isinstance(FakeQuantize(), OwnIntegers)


def test_values_are_its_own_and_the_gradient_is_straight_through() -> None:
    x = torch.tensor([0.9, -0.1, 0.5, 99.0], requires_grad=True)
    y = OwnIntegersFakeQuantize(RoundsDown())(x)
    assert y.tolist() == [0.5, -0.5, 0.5, 3.5]
    assert fake_quantize(x, QPARAMS.scale, QPARAMS.zero_point, QPARAMS.scheme).tolist() == [1.0, 0.0, 0.5, 3.5]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert OwnIntegersFakeQuantize(RoundsDown())(x.double()).dtype == torch.float64
