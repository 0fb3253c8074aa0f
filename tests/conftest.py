"""Fixtures for tests of any part."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """``torch.set_default_dtype``, as programs call it that compute in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
