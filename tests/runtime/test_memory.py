"""Where the native library finds no memory, a call gives the graph's bits or an error, and the next ones go on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.errors import KernelError
from fxquant.kernels.library import available_isas
from fxquant.runtime import engine_of
from fxquant.runtime.program import library

pytestmark = pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 8), nn.Linear(4, 3)

    def forward(self, x):
        y = self.middle(F.relu(self.first(x)).flatten(2).transpose(1, 2))
        a, b = torch.erfinv(y.clamp(-0.9, 0.9)).chunk(2, -1)
        return self.last(F.softmax(a @ a.transpose(1, 2), -1) @ (a * F.silu(b)))


@contextmanager
def failing(every: int) -> Iterator[None]:
    """After so many allocations of the native library one fails, and so on."""
    library().fxquant_fail_allocations(every)
    try:
        yield
    finally:
        library().fxquant_fail_allocations(-1)


@pytest.fixture(scope="module")
def prepared():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6)
    return fxq.calibrate(fxq.prepare(Net().eval(), x), [x], progress=False)


def test_every_allocation_may_fail(prepared):
    inputs = [torch.randn(n, 3, 6, 6) for n in (2, 2, 2, 1, 1, 1)]
    graph = fxq.convert(prepared, engine="graph")
    wanted = [graph(x) for x in inputs]
    refused, every = 0, 0
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        while every < 1 << 10:
            model, failed = fxq.convert(prepared, engine="program"), 0
            with failing(every):
                for x, right in zip(inputs, wanted, strict=True):
                    try:
                        assert torch.equal(model(x), right)
                    except (MemoryError, KernelError):
                        failed += 1
            for x, right in zip(inputs, wanted, strict=True):
                assert torch.equal(model(x), right)
            assert len(engine_of(model).plans) == 2
            refused += failed
            every = every + 1 if every < 8 else every * 3 // 2
    assert refused > 0
    assert failed == 0  # with that many none fails
