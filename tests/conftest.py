"""Fixtures for tests of any part."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator

import pytest
import torch

from fxquant.kernels.library import available_isas, native_status


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests and modules live to the end: the collector finds nothing among them, and would go through all again and
    again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionstart() -> None:
    """Without its library, ``make sanitize`` would test the reference and find nothing."""
    if os.environ.get("FXQUANT_SANITIZE") == "1" and not available_isas():
        pytest.exit(f"no sanitized kernels: {native_status().reason}", returncode=1)


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """``torch.set_default_dtype``, as programs call it that compute in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
