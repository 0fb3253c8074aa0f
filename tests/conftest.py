"""Fixtures for tests of any part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from fxquant.backends.base import BACKENDS


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """``torch.set_default_dtype``, as programs call it that compute in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def every_layer_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU back end without ``break_even``: tiny layers between float operators become int8 as large ones do."""
    monkeypatch.setitem(BACKENDS._items, "cpu", replace(BACKENDS["cpu"], break_even=None))
