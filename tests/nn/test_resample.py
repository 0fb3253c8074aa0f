"""Interpolation of stored integers against torch's own, in float64."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F

from fxquant.nn.resample import QuantizedInterpolate, taps_of
from fxquant.plan.spec import QParams, QScheme

X = QParams(QScheme(signed=False), torch.tensor([0.1]), torch.tensor([100], dtype=torch.int32))
Y = QParams(QScheme(signed=False), torch.tensor([0.13]), torch.tensor([90], dtype=torch.int32))
FLOAT32 = 2e-3
"""In steps: torch takes the weights, and the places that they stand for, in float32."""

CASES = {
    "twice": ((2, 3, 5, 6), (None, 2, "bilinear", False)),
    "a size": ((2, 3, 5, 6), ((9, 4), None, "bilinear", False)),
    "corners": ((2, 3, 5, 6), ((9, 11), None, "bilinear", True)),
    "two factors": ((2, 3, 5, 6), (None, (1.7, 0.6), "bilinear", False)),
    "two factors, taken from the sizes": ((2, 3, 5, 6), (None, (1.7, 0.6), "bilinear", False, True)),
    "cubic": ((2, 3, 8, 9), (None, 1.5, "bicubic", False)),
    "cubic corners": ((2, 3, 8, 9), ((5, 13), None, "bicubic", True)),
    "smoothed": ((2, 3, 16, 20), ((5, 7), None, "bilinear", False, None, True)),
    "smoothed cubic": ((2, 3, 16, 20), ((5, 7), None, "bicubic", False, None, True)),
    "one row": ((1, 2, 1, 1), ((3, 3), None, "bilinear", False)),
    "the same size": ((2, 3, 5, 6), ((5, 6), None, "bilinear", False)),
    "linear": ((2, 3, 7), (None, 2, "linear", False)),
    "linear corners": ((2, 3, 7), (5, None, "linear", True)),
}


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name) -> None:
    shape, arguments = CASES[name]
    q = bytes_of(*shape)
    module = QuantizedInterpolate(*arguments, x=X, y=Y)
    real = F.interpolate((q.float() - 100) * X.scale, *arguments)
    steps = (real.double() / Y.scale.double() + 90).clamp(0, 255)
    got = module(q)
    assert got.shape == steps.shape
    assert float((got.double() - steps).abs().max()) <= 0.5 + FLOAT32
    assert torch.equal(module.reference(q), got)
    assert torch.equal(pickle.loads(pickle.dumps(module))(q), got)
    if q.dim() == 4:
        again = module(q.contiguous(memory_format=torch.channels_last))
        assert torch.equal(again, got)


def test_a_call_may_bring_its_size() -> None:
    q = bytes_of(2, 3, 5, 6)
    module = QuantizedInterpolate(None, None, "bilinear", False, x=X, y=Y)
    expected = QuantizedInterpolate((9, 4), None, "bilinear", False, x=X, y=Y)(q)
    assert torch.equal(module(q, torch.Size((9, 4))), expected)
    assert torch.equal(module.reference(q, [9, 4]), expected)
    assert module(q, None, 3.0).shape == (2, 3, 15, 18)


@pytest.mark.parametrize("name", ["twice", "linear"])
def test_weights_are_float32_whatever_dtype_torch_makes_by_default(name, float64_by_default) -> None:
    shape, arguments = CASES[name]
    q = bytes_of(*shape)
    taps_of.cache_clear()
    got = QuantizedInterpolate(*arguments, x=X, y=Y)(q)
    torch.set_default_dtype(torch.float32)
    taps_of.cache_clear()
    assert torch.equal(got, QuantizedInterpolate(*arguments, x=X, y=Y)(q))


def test_weights_are_few_and_sum_to_one() -> None:
    for mode, count in (("linear", 2), ("bilinear", 2), ("bicubic", 4)):
        start, weight = taps_of(10, 23, None, mode, False, None, False, torch.device("cpu"))
        assert weight.shape == (23, count)
        assert torch.allclose(weight.sum(1), torch.ones(23))
        assert int(start.min()) == 0
        assert int(start.max()) == 10 - count


def test_printing() -> None:
    text = repr(QuantizedInterpolate(None, 2, "bilinear", False, x=X, y=Y))
    assert text.splitlines()[1].strip() == "scale_factor=2, mode='bilinear', align_corners=False, antialias=False"
