"""``FusedMovingAvgObsFakeQuantize``: a moving average of ranges, with switches of int64."""

from __future__ import annotations

import pytest
import torch

from fxquant.errors import SpecError
from fxquant.fake_quantize import FakeQuantize, FusedMovingAvgObsFakeQuantize
from fxquant.observers import MinMaxObserver, MovingAverageMinMaxObserver


def test_it_averages_ranges_as_its_observer_does() -> None:
    fused = FusedMovingAvgObsFakeQuantize(averaging_constant=0.25)
    plain = FakeQuantize(MovingAverageMinMaxObserver, averaging_constant=0.25)
    for i in range(3):
        x = torch.randn(4, 9, generator=torch.Generator().manual_seed(i)) * (i + 1)
        assert torch.equal(fused(x), plain(x))


def test_its_switches_are_int64() -> None:
    module = FusedMovingAvgObsFakeQuantize()
    for name in ("fake_quant_enabled", "observer_enabled"):
        assert module.state_dict()[name].dtype == torch.int64
    module(torch.ones(3))
    module.disable_fake_quant()
    assert torch.equal(module(torch.tensor([0.123])), torch.tensor([0.123]))


def test_another_observer_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        FusedMovingAvgObsFakeQuantize(MinMaxObserver)
    assert "FakeQuantize takes any observer" in str(caught.value)
