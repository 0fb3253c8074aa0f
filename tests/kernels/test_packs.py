"""The CUDA kernels take 16 bytes at once: where tensors begin, end and change channels anywhere in those.

They run compiled for the host, and on a GPU if there is one; what the packs make is compared with the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fxquant.kernels.fake_quantize.fake_quantize import tensor_mask_reference
from fxquant.kernels.fake_quantize.fake_quantize_learnable import backward_reference
from fxquant.kernels.fake_quantize.histogram import reference as histogram_reference
from fxquant.kernels.fake_quantize.moving_average_qparams import reference as moving_average_reference
from fxquant.kernels.quantize.dequantize import reference as dequantize_reference
from fxquant.kernels.quantize.quantize import reference as quantize_reference

OPS = torch.ops.fxquant

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LONGEST_PACK = 16
ONE_ROUNDING = 2e-7
"""Sums are float64 in another order than the reference's; then they are rounded to float32 once."""
SHAPES = ((3, 5, 7), (2, 8, 16), (1, 3, 40), (4, 16), (4, 6), (3, 1, 5))
"""Axis 1 holds the channels: of odd length, of whole packs, of more than a pack; side by side, whole packs or not."""


def beginning(at: int, x: Tensor) -> Tensor:
    """x as a contiguous view that begins ``at`` elements into its memory."""
    memory = torch.empty(at + x.numel(), dtype=x.dtype, device=x.device)
    view = memory[at:].view(x.shape)
    view.copy_(x)
    return view


def qparams(channels: int, device: str) -> tuple[Tensor, Tensor]:
    scale = torch.linspace(0.01, 0.05, channels, device=device)
    return scale, torch.arange(channels, dtype=torch.int32, device=device) % 7 - 3


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_every_length(dtype: torch.dtype, at: int, device: str, assert_same: Callable[..., None]) -> None:
    scale, zero_point = qparams(1, device)
    for length in range(2 * LONGEST_PACK + 2):
        x = beginning(at, torch.randn(length, device=device).to(dtype))
        y, mask = OPS.fake_quantize_per_tensor_affine_cachemask(x, 0.02, 3, -40, 60)
        expected, passes = tensor_mask_reference(x, 0.02, 3, -40, 60)
        assert_same(y, expected)
        assert_same(mask, passes)
        q = OPS.quantize(x, scale, zero_point, -128, 127, torch.int8, None, False)
        assert_same(q, quantize_reference(x, scale, zero_point, -128, 127, torch.int8, None, False))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_border_of_channels(
    shape: tuple[int, ...], at: int, dtype: torch.dtype, device: str, assert_same: Callable[..., None]
) -> None:
    x = beginning(at, torch.randn(shape, device=device).to(dtype))
    scale, zero_point = qparams(shape[1], device)
    q = OPS.quantize(x, scale, zero_point, -100, 90, torch.int8, 1, False)
    assert_same(q, quantize_reference(x, scale, zero_point, -100, 90, torch.int8, 1, False))
    y = OPS.dequantize(beginning(at, q), scale, zero_point, 1)
    assert_same(y, dequantize_reference(q, scale, zero_point, 1))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), [((20003,), None), ((2, 3, 4, 1000), 1), ((3, 3001), 0), ((5000, 3), 1)])
def test_channels_in_several_parts(
    shape: tuple[int, ...],
    axis: int | None,
    at: int,
    dtype: torch.dtype,
    device: str,
    assert_same: Callable[..., None],
) -> None:
    """As stretches of whole packs, with single elements behind them, and side by side."""
    x = beginning(at, (torch.randn(shape, device=device) * 10).to(dtype))
    x.view(-1)[::1009] = torch.inf
    channels = 1 if axis is None else x.shape[axis]
    scale, zero_point = qparams(channels, device)
    grad = beginning(at, torch.randn(shape, device=device).to(dtype))
    arguments = (grad, x, scale, zero_point.float(), axis, -8, 7, 0.5)
    dx, dscale, dzero_point = OPS.fake_quantize_learnable_backward(*arguments)
    expected = backward_reference(*arguments)
    assert_same(dx, expected[0])
    torch.testing.assert_close(dscale, expected[1], rtol=ONE_ROUNDING, atol=ONE_ROUNDING, equal_nan=True)
    torch.testing.assert_close(dzero_point, expected[2], rtol=ONE_ROUNDING, atol=ONE_ROUNDING)
    ranges = torch.full((channels,), torch.inf, device=device), torch.full((channels,), -torch.inf, device=device)
    step = (x, *ranges, axis, 0.01, 1e-7, 0, 255, None)
    for a, b in zip(OPS.moving_average_qparams(*step), moving_average_reference(*step), strict=True):
        assert_same(a, b)
    rows = () if axis is None else (channels,)
    state = torch.zeros(*rows, 64, dtype=torch.int64, device=device), *(each.reshape(rows) for each in ranges)
    for a, b in zip(OPS.histogram(x, *state, axis), histogram_reference(x, *state, axis), strict=True):
        assert_same(a, b)
