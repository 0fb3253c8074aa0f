"""Averages in three dimensions against float64, and against the reference to the bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxquant.nn import avg_pool3d
from fxquant.nn.avg_pool3d import QuantizedAdaptiveAvgPool3d, QuantizedAvgPool3d
from fxquant.plan.spec import QParams, QScheme

X = QParams(QScheme(signed=False), torch.tensor([0.1]), torch.tensor([100], dtype=torch.int32))
Y = QParams(QScheme(signed=False), torch.tensor([0.06]), torch.tensor([90], dtype=torch.int32))
SIGNED = QParams(QScheme(signed=True), torch.tensor([0.06]), torch.tensor([-3], dtype=torch.int32))
FLOAT32 = 1e-4
"""In steps: the sums are exact, and float32 rounds four times after them."""


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def check(module: nn.Module, q: torch.Tensor, mean: torch.Tensor, y: QParams) -> None:
    low, high = y.scheme.quant_min, y.scheme.quant_max
    steps = (mean / y.scale.double() + int(y.zero_point)).clamp(low, high)
    got = module(q)
    assert got.dtype == y.scheme.dtype
    assert got.shape == steps.shape
    assert float((got.double() - steps).abs().max()) <= 0.5 + FLOAT32
    assert torch.equal(got, module.reference(q))


@pytest.mark.parametrize("y", [Y, SIGNED], ids=["uint8", "int8"])
@pytest.mark.parametrize(
    "arguments",
    [
        (2,),
        ((2, 3, 1), (1, 2, 2)),
        (3, 2, 1, True, False),
        ((3, 2, 2), 2, (1, 0, 1), True, True),
        (2, None, 0, False, True, 5),
    ],
)
@pytest.mark.parametrize("batch", [(2,), ()])
def test_windows(arguments, y, batch) -> None:
    q = bytes_of(*batch, 3, 6, 7, 8)
    mean = F.avg_pool3d((q.double() - 100) * X.scale.double(), *arguments)
    check(QuantizedAvgPool3d(*arguments, x=X, y=y), q, mean, y)


@pytest.mark.parametrize("y", [Y, SIGNED], ids=["uint8", "int8"])
@pytest.mark.parametrize("size", [1, 2, (3, 1, 4), (None, 2, 3), (1, 1, 1)])
def test_adaptive_windows(size, y) -> None:
    q = bytes_of(2, 3, 6, 7, 8)
    mean = F.adaptive_avg_pool3d((q.double() - 100) * X.scale.double(), size)
    check(QuantizedAdaptiveAvgPool3d(size, x=X, y=y), q, mean, y)


def test_sums_that_float32_cannot_hold_are_float64s(monkeypatch) -> None:
    monkeypatch.setattr(avg_pool3d, "EXACT_IN_FLOAT32", 7)
    seen = []
    right = F.avg_pool3d
    monkeypatch.setattr(avg_pool3d.F, "avg_pool3d", lambda x, *a, **k: seen.append(x.dtype) or right(x, *a, **k))
    q = bytes_of(1, 2, 4, 4, 4)
    for module in (QuantizedAvgPool3d(2, x=X, y=Y), QuantizedAdaptiveAvgPool3d(2, X, Y)):
        assert torch.equal(module(q), module.reference(q))
    assert seen == [torch.float64, torch.float64]


def test_printing() -> None:
    assert repr(QuantizedAvgPool3d(2, x=X, y=Y)).splitlines()[1].strip() == (
        "kernel_size=[2, 2, 2], stride=[2, 2, 2], padding=[0, 0, 0], ceil_mode=False, count_include_pad=True, "
        "divisor_override=None"
    )
    assert repr(QuantizedAdaptiveAvgPool3d(1, X, Y)).startswith("QuantizedAdaptiveAvgPool3d(output_size=(1, 1, 1), ")
