"""The presets: all of them are there, can be made, compared and pickled."""

from __future__ import annotations

import pickle

import pytest
import torch

from fxquant import fake_quantize
from fxquant.fake_quantize import FakeQuantize

NAMES = [name for name in fake_quantize.__all__ if name.startswith(("default_", "fused_"))]


def test_there_are_all_that_users_know() -> None:
    assert len(NAMES) == 16


@pytest.mark.parametrize("name", NAMES)
def test_each_makes_modules_that_simulate(name: str) -> None:
    constructor = getattr(fake_quantize, name)
    module = constructor()
    assert isinstance(module, FakeQuantize)
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(module(x), x)
    assert pickle.loads(pickle.dumps(constructor)) == constructor
    assert constructor.with_args() == constructor
