"""A convolution's packed weight: one to three dimensions, every padding, residuals that broadcast."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fxquant.kernels.conv.native import NativeConv
from fxquant.kernels.conv.reference import ConvGeometry, conv_reference
from fxquant.kernels.epilogue import Epilogue

NO_ZERO_POINT = torch.zeros(1, dtype=torch.int32)
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SIZES = (7, 6, 5)
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def integers(dtype: torch.dtype, *shape: int) -> Tensor:
    low = torch.iinfo(dtype).min
    return torch.randint(low, low + 256, shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))


def epilogue() -> Epilogue:
    return Epilogue(
        x_scale=0.02, weight_scale=torch.linspace(0.001, 0.002, 6), bias=None, y_scale=0.05, y_zero_point=100,
        quant_min=0, quant_max=255, dtype=torch.uint8, residual_scale=0.03, residual_zero_point=-5,
    )  # fmt: skip


def pair(spatial: int, residual: Tensor | None, **walk: object) -> tuple[Tensor, Tensor]:
    """What the packed weight gives, and the definition."""
    geometry = ConvGeometry.of(CONV[spatial](4, 6, (3, 2, 3)[:spatial], groups=2, device="meta", **walk))
    x, weight = integers(torch.int8, 2, 4, *SIZES[:spatial]), integers(torch.int8, 6, 2, *geometry.kernel_size)
    got = NativeConv(weight, torch.int8, -3, geometry, epilogue())(x, residual)
    return got, conv_reference(x, -3, weight, NO_ZERO_POINT, geometry, epilogue(), residual)


@pytest.mark.parametrize("spatial", CONV)
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_every_padding(spatial: int, mode: str) -> None:
    for padding in (0, 1, "same"):
        got, want = pair(spatial, None, padding=padding, padding_mode=mode)
        assert torch.equal(got, want)
        if spatial > 1:
            assert got.is_contiguous(memory_format=CHANNELS_LAST[spatial])


@pytest.mark.parametrize("spatial", CONV)
def test_a_residual_is_broadcast(spatial: int) -> None:
    out = pair(spatial, None)[1].shape
    for shape in ((), out[-1:], (6, *[1] * spatial), (2, 1, *out[2:]), out):
        got, want = pair(spatial, integers(torch.int8, *shape))
        assert torch.equal(got, want)
