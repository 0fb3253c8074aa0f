"""Tensors of more than 2^31 elements: ``make large``.

Results are compared in places, since a reference takes ten times the memory.
"""

from __future__ import annotations

import psutil
import pytest
import torch
from torch import Tensor

from fxquant.kernels import (
    fake_quantize_learnable_per_channel_affine_backward,
    fake_quantize_per_channel_affine,
    fake_quantize_per_tensor_affine_cachemask,
    fake_quantize_per_tensor_affine_cachemask_backward,
    histogram,
    moving_average_qparams,
)
from fxquant.kernels.fake_quantize.fake_quantize import channel_reference, tensor_mask_reference

pytestmark = pytest.mark.large

ROWS, COLUMNS = 2**14 + 1, 2**17
NUMEL = ROWS * COLUMNS
"""2^31 and one row."""
GB = 1e9
PLACES = [slice(0, 1000), slice(2**31 - 1000, 2**31 + 1000), slice(NUMEL - 1000, NUMEL)]


def require(gigabytes: float) -> None:
    free = psutil.virtual_memory().available / GB
    if free < gigabytes:
        pytest.skip(f"{gigabytes} GB of memory are needed, {free:.1f} are free")


@pytest.fixture(scope="module")
def x() -> Tensor:
    """bfloat16 [ROWS, COLUMNS], 4.3 GB; values everywhere, with the extremes behind the element 2^31."""
    require(6)
    row = torch.randn(COLUMNS, generator=torch.Generator().manual_seed(0)).bfloat16()
    values = row.expand(ROWS, COLUMNS).contiguous()
    values[-1, -2:] = torch.tensor([-100.0, 200.0])
    return values


def test_values_and_mask(x: Tensor) -> None:
    require(8)
    y, mask = fake_quantize_per_tensor_affine_cachemask(x, 0.02, 5, -128, 127)
    for place in PLACES:
        expected = tensor_mask_reference(x.view(-1)[place], 0.02, 5, -128, 127)
        assert torch.equal(y.view(-1)[place], expected[0])
        assert torch.equal(mask.view(-1)[place], expected[1])
    del y
    grad = torch.ones((), dtype=torch.bfloat16).expand(ROWS, COLUMNS)
    require(10)
    passed = fake_quantize_per_tensor_affine_cachemask_backward(grad, mask)
    for place in PLACES:
        assert torch.equal(passed.view(-1)[place], mask.view(-1)[place].bfloat16())


def test_values_per_channel(x: Tensor) -> None:
    require(6)
    scale = torch.linspace(0.01, 0.1, ROWS)
    zero_point = torch.arange(ROWS) % 7
    y = fake_quantize_per_channel_affine(x, scale, zero_point, 0, -128, 127)
    for part in (slice(0, 1), slice(ROWS - 2, ROWS)):
        expected = channel_reference(x[part], scale[part], zero_point[part], 0, -128, 127)
        assert torch.equal(y[part], expected)


def test_gradients_of_a_learned_grid(x: Tensor) -> None:
    require(10)
    scale, zero_point = torch.full((ROWS,), 0.05), torch.zeros(ROWS)
    grad = torch.ones((), dtype=torch.bfloat16).expand(ROWS, COLUMNS)
    arguments = (scale, zero_point, 0, -8, 7)
    dx, dscale, dzero_point = fake_quantize_learnable_per_channel_affine_backward(grad, x, *arguments)
    for part in (slice(0, 1), slice(ROWS - 2, ROWS)):
        small = (grad[part], x[part], scale[part], zero_point[part], *arguments[2:])
        expected = fake_quantize_learnable_per_channel_affine_backward(*small)
        for large, alone in zip((dx[part], dscale[part], dzero_point[part]), expected, strict=True):
            torch.testing.assert_close(large, alone, rtol=2e-7, atol=0)  # float64 sums in other parts, rounded once


def test_statistics(x: Tensor) -> None:
    start = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    low, high, *_ = moving_average_qparams(x, *start, None, 0.1, 1e-7, 0, 255, None)
    assert (low.item(), high.item()) == (-100.0, 200.0)
    counts, *_ = histogram(x, torch.zeros(2048, dtype=torch.int64), *start)
    assert counts.sum().item() == NUMEL
