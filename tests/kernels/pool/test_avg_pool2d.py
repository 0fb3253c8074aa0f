"""``fxquant::avg_pool2d``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.kernels.pool.avg_pool2d import avg_pool2d, reference

TIE = 1e-3
"""In steps: float32 rounds four times on the way, by less than 1e-4 each. Further from a tie, nothing may differ."""
GEOMETRIES = [
    pytest.param([3, 3], [1, 1], [1, 1], id="branch of Inception"),
    pytest.param([2, 2], [2, 2], [0, 0], id="transition of DenseNet"),
    pytest.param([2, 4], [1, 3], [1, 2], id="uneven"),
    pytest.param([7, 7], [1, 1], [0, 0], id="last pool"),
    pytest.param([3], [], [0], id="one number for both axes"),
]
VIEWS = (
    lambda q: q,  # dense
    lambda q: q[0],  # C-H-W
    lambda q: q[:0],  # empty batch
    lambda q: q[:, :1],  # one channel
    lambda q: q[:, :, :, 1:],  # columns left out
)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), GEOMETRIES)
def test_native_is_reference(device, stored, assert_same, dtype, channels_last, kernel, stride, padding) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = stored(2, 37, 9, 11, dtype=dtype, channels_last=channels_last)
    for ceil_mode, count_include_pad in ((False, True), (True, True), (True, False)):
        for divisor in (None, 3, -7):
            geometry = (kernel, stride, padding, ceil_mode, count_include_pad, divisor)
            for view in VIEWS:
                arguments = (view(x), *geometry, 0.1, 3, 0.05, 4, low, high)
                assert_same(avg_pool2d(*arguments), reference(*arguments))


def test_any_number_of_channels(device, stored, assert_same) -> None:
    """Tasks take 256 channels, and cover them by blocks of 64, 32, 16 and 1, of which the last may overlap."""
    for channels in (*range(1, 82), 255, 256, 257, 700):
        x = stored(1, channels, 5, 5, channels_last=True)
        arguments = (x, [3], [1], [1], False, False, None, 0.1, 3, 0.1, 3, 0, 255)
        assert_same(avg_pool2d(*arguments), reference(*arguments))


@pytest.mark.parametrize("kernel", [[11, 11], [11, 12], [12, 12]])
def test_windows_about_as_large_as_16_bit_sums_hold(device, assert_same, kernel: list[int]) -> None:
    """128 bytes of 255 sum to 32640."""
    for dtype, extreme in ((torch.uint8, 255), (torch.int8, -128)):
        x = torch.full((1, 64, 12, 12), extreme, dtype=dtype, device=device)
        x = x.contiguous(memory_format=torch.channels_last)
        limits = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        arguments = (x, kernel, [1], [0], False, False, None, 0.1, 3, 0.1, 3, *limits)
        assert_same(avg_pool2d(*arguments), reference(*arguments))
        assert torch.equal(avg_pool2d(*arguments).unique().cpu(), torch.tensor([extreme], dtype=dtype))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_geometry_against_float64(data: st.DataObject) -> None:
    kernel = [data.draw(st.integers(1, 5)) for _ in range(2)]
    stride = [data.draw(st.integers(1, 4)) for _ in range(2)]
    padding = [data.draw(st.integers(0, k // 2)) for k in kernel]
    size = [data.draw(st.integers(max(1, k - 2 * p), k + 6)) for k, p in zip(kernel, padding, strict=True)]
    ceil_mode, count_include_pad = data.draw(st.booleans()), data.draw(st.booleans())
    divisor = data.draw(st.sampled_from([None, 1, 5]))
    geometry = (kernel, stride, padding, ceil_mode, count_include_pad, divisor)
    x = torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8)
    if data.draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    scale, y_scale = (torch.tensor(value, dtype=torch.float32).double() for value in (0.1, 0.07))
    steps = F.avg_pool2d((x.double() - 90) * scale, *geometry) / y_scale + 100
    expected = steps.round().clamp(0, 255)
    actual = avg_pool2d(x, *geometry, 0.1, 90, 0.07, 100, 0, 255).double()
    far_from_tie = ((steps - steps.floor()) - 0.5).abs() > TIE
    assert actual.shape == expected.shape
    assert torch.equal(actual[far_from_tie], expected[far_from_tie])
    assert (actual - expected).abs().max() <= 1


def test_padding_is_real_zero(isa) -> None:
    """Stored as the zero point, so that a border is darker only where it is counted."""
    x = torch.full((1, 1, 2, 2), 20, dtype=torch.uint8)
    counted = avg_pool2d(x, [2, 2], [1, 1], [1, 1], False, True, None, 1.0, 10, 1.0, 10, 0, 255)
    assert counted[0, 0].tolist() == [[12, 15, 12], [15, 20, 15], [12, 15, 12]]
    left_out = avg_pool2d(x, [2, 2], [1, 1], [1, 1], False, False, None, 1.0, 10, 1.0, 10, 0, 255)
    assert left_out[0, 0].tolist() == [[20, 20, 20], [20, 20, 20], [20, 20, 20]]


def test_within_one_step_of_the_frameworks_own_operator(isa, stored, framework_tensor) -> None:
    x = stored(2, 32, 14, 14, channels_last=True)
    theirs = torch._C._nn.avg_pool2d(framework_tensor(x, 0.1, 3), 3, 2, 1).int_repr()
    ours = avg_pool2d(x, [3, 3], [2, 2], [1, 1], False, True, None, 0.1, 3, 0.1, 3, 0, 255)
    assert (ours.int() - theirs.int()).abs().max() <= 1


def byte(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        ({"x": torch.zeros(1, 4, 4)}, "x has the wrong dtype", "torch.float32", "uint8 or int8"),
        (
            {"x": byte(3, 0, 4)},
            "x has the wrong shape",
            "[3, 0, 4]",
            "[N, C, H, W] or [C, H, W], of which only N may be 0",
        ),
        ({"kernel_size": [0]}, "kernel_size is too small", "[0, 0]", "at least 1"),
        ({"padding": [2, 0]}, "padding is too large", "[2, 0]", "at most half of the kernel, [1, 1]"),
        (
            {"kernel_size": [5, 5]},
            "x is smaller than the kernel",
            "x [1, 1, 4, 4], kernel_size [5, 5]",
            "at least one window",
        ),
        ({"divisor_override": 0}, "divisor_override is out of range", "0", "None or a number other than 0"),
        ({"x_scale": 0.0}, "x_scale is unusable", "0", "a positive, normal float32"),
        ({"x_zero_point": 256}, "x_zero_point is out of range", "256", "0 to 255"),
        (
            {"quant_max": 300},
            "quant_min and quant_max are out of range",
            "[0, 300]",
            "quant_min <= quant_max, both in 0 to 255",
        ),
    ],
)
def test_errors(changes: dict[str, object], what: str, got: str, expected: str) -> None:
    arguments = {
        "x": byte(1, 1, 4, 4), "kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False,
        "count_include_pad": True, "divisor_override": None, "x_scale": 0.1, "x_zero_point": 0, "scale": 0.1,
        "zero_point": 0, "quant_min": 0, "quant_max": 255,
    } | changes  # fmt: skip
    for run in (avg_pool2d, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments)
        assert str(error.value) == f"fxquant::avg_pool2d: {what}\n  got:      {got}\n  expected: {expected}"


@pytest.mark.parametrize("channels_last", [False, True])
def test_opcheck(stored, channels_last: bool) -> None:
    x = stored(2, 5, 8, 8, channels_last=channels_last)
    qparams = (0.1, 3, 0.1, 3, 0, 255)
    for geometry in (([3, 3], [2, 2], [1, 1], False, True, None), ([3, 2], [], [0, 1], True, False, 5)):
        torch.library.opcheck(torch.ops.fxquant.avg_pool2d.default, (x, *geometry, *qparams))
