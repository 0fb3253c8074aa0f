"""Fake quantization on a grid that each call chooses."""

from __future__ import annotations

import math

import pytest
import torch

from fxquant.fake_quantize.dynamic import DynamicFakeQuantize, qparams_of
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.observers import MinMaxObserver
from fxquant.plan.spec import Dynamic, QScheme

SCHEMES = (QScheme(signed=False), QScheme(symmetric=True), QScheme(bits=4, limits=(-7, 7)))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_call_is_calibrated_on_itself(scheme):
    module = DynamicFakeQuantize(Dynamic(scheme))
    for seed, factor in enumerate((1.0, 1e-3, 50.0)):
        x = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed)) * factor
        observer = MinMaxObserver(scheme=scheme)
        observer(x)
        qparams = observer.qparams()
        assert torch.equal(module(x), fake_quantize(x, qparams.scale, qparams.zero_point, scheme))
    assert module.state_dict() == {}


def test_the_grid_is_float32_whatever_dtype_torch_makes_by_default(float64_by_default):
    qparams = qparams_of(torch.tensor([-1.0, 1.55]), Dynamic(SCHEMES[0]))
    assert qparams.scale.dtype == torch.float32
    assert qparams.zero_point.tolist() == [100]


def test_the_gradient_goes_straight_through():
    x = torch.randn(4, 7, requires_grad=True)
    DynamicFakeQuantize(Dynamic(SCHEMES[0]))(x).backward(torch.full_like(x, 3.0))
    assert torch.equal(x.grad, torch.full_like(x, 3.0))


def test_what_is_no_number_saturates():
    policy = Dynamic(SCHEMES[0])
    y = DynamicFakeQuantize(policy)(torch.tensor([0.0, 1.0, math.inf, -math.inf, math.nan]))
    assert torch.equal(y, torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0]))
    nothing = qparams_of(torch.tensor([math.nan, math.inf]), policy)
    assert (nothing.scale.item(), nothing.zero_point.item()) == (policy.eps, 0)


def test_the_smallest_scale():
    assert qparams_of(torch.zeros(3), Dynamic(SCHEMES[0], eps=0.5)).scale.item() == 0.5


def test_no_values_and_other_dtypes():
    module = DynamicFakeQuantize(Dynamic(SCHEMES[0]))
    assert module(torch.empty(0, 3)).shape == (0, 3)
    for dtype in (torch.float64, torch.bfloat16):
        assert module(torch.randn(3).to(dtype)).dtype == dtype


def test_printing():
    assert repr(DynamicFakeQuantize(Dynamic(SCHEMES[0]))) == "DynamicFakeQuantize(uint8 affine per tensor, per call)"
