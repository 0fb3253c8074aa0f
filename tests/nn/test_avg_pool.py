"""The pool and mean modules against torch's own in float64; arguments in all their spellings."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.nn import QuantizedAdaptiveAvgPool2d, QuantizedAvgPool2d, QuantizedMaxPool2d, QuantizedMean, avg_pool
from fxquant.nn.avg_pool import QuantizedAdaptiveAvgPool3d, QuantizedAvgPool3d
from fxquant.plan.spec import QParams, QScheme

TIE = 1e-3
"""In steps: float32 rounds four times on the way, by less than 1e-4 each. Further from a tie, nothing may differ."""


def qparams(scale: float, zero_point: int, signed: bool = False) -> QParams:
    scheme = QScheme(signed=signed)
    return QParams(scheme, torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


X, Y = qparams(0.1, 90), qparams(0.07, 100)


def image() -> Tensor:
    q = torch.randint(0, 256, (2, 5, 9, 11), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return q.contiguous(memory_format=torch.channels_last)


def assert_near(module: nn.Module, x: Tensor, real: Tensor, y: QParams = Y) -> None:
    """``real``: what torch gives in float64 for the dequantized input."""
    steps = real / y.scale.item() + y.zero_point.item()
    expected = steps.round().clamp(y.scheme.quant_min, y.scheme.quant_max)
    actual = module(x)
    far_from_tie = ((steps - steps.floor()) - 0.5).abs() > TIE
    assert actual.dtype == y.scheme.dtype
    assert torch.equal(actual.double()[far_from_tie], expected[far_from_tie])
    assert (actual.double() - expected).abs().max() <= 1
    assert torch.equal(module.reference(x), actual)


def real_of(q: Tensor) -> Tensor:
    return (q.double() - X.zero_point) * X.scale.double()


@pytest.mark.parametrize(
    "arguments",
    [
        (2,),
        ((3, 2),),
        (3, 2, 1),
        (3, (2, 1), (1, 0), True),
        (3, 2, 1, True, False),
        (3, None, 1, False, True, 4),
    ],
)
def test_avg_pool2d(arguments: tuple[object, ...]) -> None:
    x = image()
    assert_near(QuantizedAvgPool2d(*arguments, x=X, y=Y), x, F.avg_pool2d(real_of(x), *arguments))


@pytest.mark.parametrize("size", [1, (1, 1), (3, 4), (None, 1), (2, None), [7, 7]])
def test_adaptive_avg_pool2d(size: object) -> None:
    x = image()
    assert_near(QuantizedAdaptiveAvgPool2d(size, X, Y), x, F.adaptive_avg_pool2d(real_of(x), size))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [(2, 3), [-1, -2], 1, None, (0,)])
def test_mean(dim: object, keepdim: bool) -> None:
    x = image()
    real = real_of(x)
    expected = real.mean(tuple(range(4)) if dim is None else dim, keepdim)
    assert_near(QuantizedMean(dim, keepdim, X, Y), x, expected)


def test_result_of_the_other_byte_type() -> None:
    x, y = image(), qparams(0.07, -20, signed=True)
    assert_near(QuantizedMean((2, 3), False, X, y), x, real_of(x).mean((2, 3)), y)
    assert_near(QuantizedAvgPool2d(3, 2, 1, x=X, y=y), x, F.avg_pool2d(real_of(x), 3, 2, 1), y)


def test_state_travels() -> None:
    x = image()
    for module in (
        QuantizedMaxPool2d(2),
        QuantizedAvgPool2d(2, x=X, y=Y),
        QuantizedAdaptiveAvgPool2d(1, X, Y),
        QuantizedMean(None, False, X, Y),
    ):
        expected = module(x)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert torch.equal(other(x), expected)


def test_printing() -> None:
    assert repr(QuantizedMaxPool2d(3, 2)) == (
        "QuantizedMaxPool2d(kernel_size=(3, 3), stride=(2, 2), padding=(0, 0), dilation=(1, 1), ceil_mode=False)"
    )
    assert repr(QuantizedAdaptiveAvgPool2d(1, X, Y)) == (
        "QuantizedAdaptiveAvgPool2d(output_size=(1, 1), y: uint8 scale=0.07 zero_point=100, "
        "x: uint8 scale=0.1 zero_point=90)"
    )
    assert repr(QuantizedMean(None, True, X, Y)) == (
        "QuantizedMean(dim=all, keepdim=True, y: uint8 scale=0.07 zero_point=100, x: uint8 scale=0.1 zero_point=90)"
    )
    assert "kernel_size=(2, 2), stride=(2, 2), padding=(0, 0), ceil_mode=False, count_include_pad=True" in repr(
        QuantizedAvgPool2d(2, x=X, y=Y)
    )


X3 = QParams(QScheme(signed=False), torch.tensor([0.1]), torch.tensor([100], dtype=torch.int32))
Y3 = QParams(QScheme(signed=False), torch.tensor([0.06]), torch.tensor([90], dtype=torch.int32))
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


@pytest.mark.parametrize("y", [Y3, SIGNED], ids=["uint8", "int8"])
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
    mean = F.avg_pool3d((q.double() - 100) * X3.scale.double(), *arguments)
    check(QuantizedAvgPool3d(*arguments, x=X3, y=y), q, mean, y)


@pytest.mark.parametrize("y", [Y3, SIGNED], ids=["uint8", "int8"])
@pytest.mark.parametrize("size", [1, 2, (3, 1, 4), (None, 2, 3), (1, 1, 1)])
def test_adaptive_windows(size, y) -> None:
    q = bytes_of(2, 3, 6, 7, 8)
    mean = F.adaptive_avg_pool3d((q.double() - 100) * X3.scale.double(), size)
    check(QuantizedAdaptiveAvgPool3d(size, x=X3, y=y), q, mean, y)


def test_sums_that_float32_cannot_hold_are_float64s(monkeypatch) -> None:
    monkeypatch.setattr(avg_pool, "EXACT_IN_FLOAT32", 7)
    seen = []
    right = F.avg_pool3d
    monkeypatch.setattr(avg_pool.F, "avg_pool3d", lambda x, *a, **k: seen.append(x.dtype) or right(x, *a, **k))
    q = bytes_of(1, 2, 4, 4, 4)
    for module in (QuantizedAvgPool3d(2, x=X3, y=Y3), QuantizedAdaptiveAvgPool3d(2, X3, Y3)):
        assert torch.equal(module(q), module.reference(q))
    assert seen == [torch.float64, torch.float64]


def test_printing_of_avg_pool3d() -> None:
    assert repr(QuantizedAvgPool3d(2, x=X3, y=Y3)).splitlines()[1].strip() == (
        "kernel_size=[2, 2, 2], stride=[2, 2, 2], padding=[0, 0, 0], ceil_mode=False, count_include_pad=True, "
        "divisor_override=None"
    )
    assert repr(QuantizedAdaptiveAvgPool3d(1, X3, Y3)).startswith("QuantizedAdaptiveAvgPool3d(output_size=(1, 1, 1), ")
