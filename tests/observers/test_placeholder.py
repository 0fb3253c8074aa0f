"""PlaceholderObserver: carries a dtype, measures nothing."""

from __future__ import annotations

import pytest
import torch

from fxquant.errors import CalibrationError
from fxquant.observers import NoopObserver, PlaceholderObserver
from fxquant.plan.spec import QScheme


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
