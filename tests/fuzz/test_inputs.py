"""Kinds of input: each is what its name says."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.inputs import MEMORY, VARIANTS, values_of
from tests.fuzz.source import Input

INPUTS = (Input("x", (2, 4, 6, 6)), Input("y", (2, 4, 6, 6)), Input("ids", (2, 3), high=5))


def first(name: str) -> torch.Tensor:
    return VARIANTS[name](INPUTS, 0)[0]


@pytest.mark.parametrize("name", VARIANTS)
def test_shapes_and_dtypes_stay(name):
    x, y, ids = VARIANTS[name](INPUTS, 0)
    batch = {"other batch": 3, "batch of one": 1, "empty": 0}.get(name, 2)
    assert x.shape == y.shape == (batch, 4, 6, 6)
    assert ids.shape == (batch, 3)
    assert x.dtype == y.dtype == torch.float32
    assert ids.numel() == 0 or int(ids.max()) < 5


def test_memory():
    assert set(MEMORY) < set(VARIANTS)
    assert first("strided").stride(-1) == 2
    assert not first("transposed").is_contiguous()
    assert first("channels last").is_contiguous(memory_format=torch.channels_last)
    assert first("expanded").stride(0) == 0
    assert first("with an offset").storage_offset() == 3
    assert torch.equal(first("strided"), values_of(INPUTS, 0)[0])
    x, y, _ = VARIANTS["aliased"](INPUTS, 0)
    assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    assert torch.equal(x[1], y[0])


def test_numbers():
    assert first("NaN").isnan().any()
    assert first("infinite").isinf().any()
    assert not first("infinite").isnan().any()
    assert float(first("huge").abs().max()) > 1e38
    small = first("denormal").abs()
    assert bool(((small > 0) & (small < torch.finfo(torch.float32).tiny)).any())
    assert not first("zero").any()
