"""``FixedQParamsFakeQuantize``: one grid, whatever comes."""

from __future__ import annotations

import pytest
import torch

from fxquant.errors import SpecError
from fxquant.fake_quantize import FixedQParamsFakeQuantize, default_fixed_qparams_range_0to1_fake_quant
from fxquant.observers import FixedQParamsObserver, MinMaxObserver


def test_the_grid_never_moves_and_is_that_of_the_observer() -> None:
    module = default_fixed_qparams_range_0to1_fake_quant()
    assert module.scale is module.activation_post_process.scale
    assert module.zero_point is module.activation_post_process.zero_point
    y = module(torch.tensor([-1.0, 0.5, 99.0]))
    assert y.tolist() == [0.0, 0.5, 255 / 256]
    assert module.calculate_qparams()[0].item() == 1 / 256


def test_another_observer_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        FixedQParamsFakeQuantize(MinMaxObserver)
    assert "MinMaxObserver" in str(caught.value)
    assert "FixedQParamsObserver.with_args" in str(caught.value)


def test_a_grid_per_channel_is_refused() -> None:
    with pytest.raises(SpecError):
        FixedQParamsFakeQuantize(
            FixedQParamsObserver.with_args(scale=1.0, zero_point=0, qscheme=torch.per_channel_affine)
        )
