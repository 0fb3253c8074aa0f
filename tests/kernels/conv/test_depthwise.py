"""Depthwise convolutions: ``fxquant::conv2d`` and ``conv3d`` with a group for each channel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fxquant.kernels.conv.native import NativeConv
from fxquant.kernels.conv.reference import ConvGeometry, conv_reference
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.library import available_isas, use_isa

NO_ZERO_POINT = torch.zeros(1, dtype=torch.int32)
BYTES = (torch.uint8, torch.int8)


def bytes_of(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    low = torch.iinfo(dtype).min
    return torch.randint(low, low + 256, shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def assert_equals_reference(
    conv: nn.Module,
    x: Tensor,
    residual: Tensor | None,
    y_dtype: torch.dtype,
    y_scale: float = 0.02,
    narrower: int = 3,
) -> None:
    """Compare every instruction set with the definition, bit by bit."""
    channels = x.shape[1]
    weight = bytes_of(torch.int8, *conv.weight.shape, seed=1)
    low = 0 if y_dtype == torch.float32 else torch.iinfo(y_dtype).min
    epilogue = Epilogue(
        x_scale=0.02,
        weight_scale=torch.linspace(0.5, 1.5, channels) / (73 * weight[0].numel() ** 0.5),
        bias=torch.linspace(-0.3, 0.3, channels),
        y_scale=y_scale,
        y_zero_point=low + 120,
        quant_min=low + narrower,
        quant_max=low + 255 - narrower,
        dtype=y_dtype,
        residual_scale=0.01,
        residual_zero_point=0 if residual is None else torch.iinfo(residual.dtype).min + 130,
    )
    zero_point, geometry = torch.iinfo(x.dtype).min + 117, ConvGeometry.of(conv)
    want = conv_reference(x, zero_point, weight, NO_ZERO_POINT, geometry, epilogue, residual)
    run = NativeConv(weight, x.dtype, zero_point, geometry, epilogue)
    for isa in available_isas():
        with use_isa(isa):
            assert torch.equal(run(x, residual), want), isa


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("channels", [2, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 130, 200])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [3, 5, 7])
def test_windows_with_tiles_of_their_own(side: int, stride: int, channels: int) -> None:
    """Blocks of one to four panels, of which some channels are missing, at all borders."""
    conv = nn.Conv2d(channels, channels, side, stride, side // 2, groups=channels)

    for narrower in (0, 3):
        x = channels_last(bytes_of(torch.uint8, 2, channels, 11, 19))
        assert_equals_reference(conv, x, None, torch.uint8, narrower=narrower)


@pytest.mark.parametrize("y_dtype", [torch.uint8, torch.int8, torch.float32])
@pytest.mark.parametrize("residual", [None, *BYTES])
@pytest.mark.parametrize("x_dtype", BYTES)
def test_epilogues(x_dtype: torch.dtype, residual: torch.dtype | None, y_dtype: torch.dtype) -> None:
    for side in (3, 4, 5):
        conv = nn.Conv2d(104, 104, side, 1, 1, groups=104)
        x = channels_last(bytes_of(x_dtype, 2, 104, 7, 9))
        out = ConvGeometry.of(conv).output_size(x.shape[2:])

        assert_equals_reference(conv, x, None if residual is None else bytes_of(residual, 2, 104, *out), y_dtype)


@pytest.mark.parametrize("side", [3, 4, 5])
def test_results_that_pass_int32(side: int) -> None:
    """Then values are clamped before they are rounded."""
    conv = nn.Conv2d(80, 80, side, 1, 1, groups=80)

    assert_equals_reference(conv, channels_last(bytes_of(torch.uint8, 1, 80, 6, 7)), None, torch.uint8, y_scale=1e-12)


@pytest.mark.parametrize("width", [1, 2, 3, 20, 64, 65, 130, 260])
@pytest.mark.parametrize("channels", [16, 70])
def test_rows_of_any_length(width: int, channels: int) -> None:
    """A row is one strip, or several."""
    for side, stride in ((3, 1), (3, 2), (5, 1), (6, 2)):
        conv = nn.Conv2d(channels, channels, side, stride, side // 2, groups=channels)

        assert_equals_reference(conv, channels_last(bytes_of(torch.int8, 1, channels, 5, width)), None, torch.uint8)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [
        ((3, 3), (1, 1), (36, 36)),  # taps share no columns
        ((3, 3), (2, 3), (3, 2)),
        ((1, 9), (1, 4), (1, 6)),
        ((9, 1), (1, 1), (1, 1)),
        ((2, 3), (1, 1), (1, 1)),  # three rows of the result from one packing
        ((1, 3), (1, 1), (1, 1)),  # four
        ((13, 13), (1, 1), (1, 1)),
        ((1, 5), (3, 7), (1, 1)),  # a stride beyond the window
        ((32, 32), (1, 1), (1, 1)),
    ],
)
def test_geometries(kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> None:
    for channels in (19, 68):
        conv = nn.Conv2d(channels, channels, kernel, stride, (4, 5), dilation, channels)
        size = [max(10, step * (k - 1) + 1) + 3 for k, step in zip(kernel, dilation, strict=True)]

        assert_equals_reference(conv, channels_last(bytes_of(torch.uint8, 1, channels, *size)), None, torch.uint8)


def test_more_padding_than_window() -> None:
    conv = nn.Conv2d(66, 66, 3, 1, 1, groups=66)
    conv.padding = (4, 6)

    assert_equals_reference(conv, channels_last(bytes_of(torch.int8, 2, 66, 1, 1)), None, torch.uint8)


def test_volumes() -> None:
    for kernel, stride in (((3, 3, 3), 1), ((1, 3, 3), 2), ((2, 5, 5), 1)):
        conv = nn.Conv3d(70, 70, kernel, stride, 1, groups=70)

        assert_equals_reference(conv, bytes_of(torch.uint8, 1, 70, 4, 6, 7), None, torch.uint8)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_geometry_on_every_instruction_set(data: st.DataObject) -> None:
    draw = data.draw
    channels = draw(st.integers(2, 150))
    kernel = draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (3, 3)]))
    padding = draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    reach = [step * (k - 1) + 1 for k, step in zip(kernel, dilation, strict=True)]
    size = [max(1, need - 2 * side) + draw(st.integers(0, 40)) for need, side in zip(reach, padding, strict=True)]
    conv = nn.Conv2d(channels, channels, kernel, stride, padding, dilation, channels)
    x = channels_last(bytes_of(draw(st.sampled_from(BYTES)), draw(st.integers(1, 2)), channels, *size))
    out = ConvGeometry.of(conv).output_size(x.shape[2:])
    residual = draw(st.sampled_from([None, None, *BYTES]))

    assert_equals_reference(
        conv,
        x,
        None if residual is None else bytes_of(residual, x.shape[0], channels, *out),
        draw(st.sampled_from([*BYTES, torch.float32])),
    )


def test_the_result_depends_on_no_number_of_threads() -> None:
    conv = nn.Conv2d(150, 150, 3, padding=1, groups=150)
    x, weight = channels_last(bytes_of(torch.uint8, 2, 150, 40, 30)), bytes_of(torch.int8, 150, 1, 3, 3)
    epilogue = Epilogue(
        x_scale=0.02, weight_scale=torch.ones(150) / 200, bias=None, y_scale=0.02, y_zero_point=120, quant_min=0,
        quant_max=255, dtype=torch.uint8,
    )  # fmt: skip
    run, before = NativeConv(weight, torch.uint8, 117, ConvGeometry.of(conv), epilogue), torch.get_num_threads()
    want = run(x)
    try:
        for threads in (2, 3, 7):
            torch.set_num_threads(threads)
            assert torch.equal(run(x), want)
    finally:
        torch.set_num_threads(before)
