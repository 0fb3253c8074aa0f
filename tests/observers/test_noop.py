"""NoopObserver: does nothing."""

from __future__ import annotations

import pytest
import torch

from fxquant.errors import CalibrationError
from fxquant.observers import NoopObserver


def test_passes_values_on():
    observer = NoopObserver(custom_op_name="op")
    x = torch.randn(3)
    assert observer(x) is x
    assert (observer.scheme, observer.dtype, observer.custom_op) == (None, torch.float16, "op")
    assert repr(observer) == "NoopObserver(torch.float16)"
    with pytest.raises(CalibrationError, match="a NoopObserver measures nothing, so it has no scale"):
        observer.qparams()
