"""FixedQParamsObserver and its two presets; observers that carry a dtype, or nothing."""

from __future__ import annotations

import math

import pytest
import torch

from fxquant.errors import CalibrationError, SpecError
from fxquant.observers import (
    FixedQParamsObserver,
    NoopObserver,
    PlaceholderObserver,
    default_fixed_qparams_range_0to1_observer,
    default_fixed_qparams_range_neg1to1_observer,
)
from fxquant.plan.spec import QScheme


@pytest.mark.parametrize(
    ("make", "scale", "zero_point", "function"),
    [
        (default_fixed_qparams_range_0to1_observer, 1 / 256, 0, torch.sigmoid),
        (default_fixed_qparams_range_neg1to1_observer, 2 / 256, 128, torch.tanh),
    ],
    ids=["sigmoid", "tanh"],
)
def test_presets_cover_the_function_whatever_was_seen(make, scale, zero_point, function):
    observer = make()
    observer(torch.linspace(-1, 1, 64))
    qparams = observer.qparams()
    assert (qparams.scale.tolist(), qparams.zero_point.tolist()) == ([scale], [zero_point])
    assert (qparams.scale.dtype, qparams.zero_point.dtype) == (torch.float32, torch.int32)
    assert (observer.quant_min, observer.quant_max) == (0, 255)
    y = function(torch.linspace(-8, 8, 65))
    restored = ((y / scale).round().add(zero_point).clamp(0, 255) - zero_point) * scale
    # The last step of the grid is 255/256 (or 127/128) of the bound, so values near the bound are off by up to a step.
    assert (restored - y).abs().max() <= scale


def test_state_and_text():
    observer = FixedQParamsObserver(0.5, 3, scheme=QScheme(bits=4))
    assert list(observer.state_dict()) == ["scale", "zero_point"]
    assert repr(observer) == "FixedQParamsObserver(int4 affine per tensor, scale=0.5, zero_point=3)"
    other = FixedQParamsObserver(1.0, 0, scheme=QScheme(bits=4))
    other.load_state_dict(observer.state_dict())
    assert other.calculate_qparams() == observer.calculate_qparams()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": 0.0, "zero_point": 0}, "a scale is a finite number above 0\n  got:      0.0"),
        ({"scale": math.nan, "zero_point": 0}, "a scale is a finite number above 0\n  got:      nan"),
        (
            {"scale": 1.0, "zero_point": 128, "dtype": torch.qint8},
            "the zero point lies outside the limits\n  got:      128\n  expected: a whole number from -128 to 127",
        ),
        (
            {"scale": 1.0, "zero_point": 0.5},
            "the zero point lies outside the limits\n  got:      0.5\n  expected: a whole number from 0 to 255",
        ),
        (
            {"scale": 1.0, "zero_point": 0, "is_dynamic": True},
            "fixed qparams are not measured at run time\n  got:      is_dynamic=True",
        ),
    ],
)
def test_bad_grids(arguments, message):
    with pytest.raises(SpecError) as caught:
        FixedQParamsObserver(**arguments)
    assert str(caught.value) == message


def test_float_has_no_scheme():
    for dtype in (torch.float32, torch.float16):
        observer = PlaceholderObserver(dtype)
        x = torch.randn(3)
        assert observer(x) is x
        assert (observer.scheme, observer.dtype, observer.quant_min) == (None, dtype, None)
    assert repr(observer) == "PlaceholderObserver(dtype=torch.float16, is_dynamic=False)"
    assert not observer.state_dict()


def test_integers_have_one():
    observer = PlaceholderObserver(torch.qint8, custom_op_name="op", quant_min=-127, is_dynamic=True)
    assert observer.scheme == QScheme(limits=(-127, 127))
    assert (observer.custom_op, observer.is_dynamic, observer.qscheme) == ("op", True, torch.per_tensor_affine)
    assert PlaceholderObserver(compute_dtype=torch.qint8).is_dynamic


def test_ranges_of_tokens():
    observer = PlaceholderObserver(torch.qint8, is_dynamic=True, per="token")
    assert (observer.per, PlaceholderObserver().per) == ("token", "tensor")
    assert repr(observer) == "PlaceholderObserver(dtype=torch.qint8, is_dynamic=True, per='token')"
    with pytest.raises(SpecError) as caught:
        PlaceholderObserver(torch.qint8, per="token")
    assert str(caught.value) == (
        "a range for each token is measured at run time\n"
        "  got:      per='token', is_dynamic=False\n"
        "  expected: is_dynamic=True"
    )
    with pytest.raises(SpecError) as caught:
        PlaceholderObserver(torch.qint8, is_dynamic=True, per="row")
    assert str(caught.value) == "per is no part of a value\n  got:      'row'\n  expected: 'tensor' or 'token'"


def test_it_has_no_qparams():
    with pytest.raises(CalibrationError) as caught:
        PlaceholderObserver(torch.qint8).calculate_qparams()
    assert str(caught.value) == (
        "a PlaceholderObserver measures nothing, so it has no scale and zero point\n"
        "  hint:     use MinMaxObserver for what is to be quantized"
    )


def test_passes_values_on():
    observer = NoopObserver(custom_op_name="op")
    x = torch.randn(3)
    assert observer(x) is x
    assert (observer.scheme, observer.dtype, observer.custom_op) == (None, torch.float16, "op")
    assert repr(observer) == "NoopObserver(torch.float16)"
    with pytest.raises(CalibrationError, match="a NoopObserver measures nothing, so it has no scale"):
        observer.qparams()
