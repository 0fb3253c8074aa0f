"""``fxquant::moving_average_qparams``: native = reference to the bit, and both what the observers answer."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fxquant.kernels import moving_average_qparams
from fxquant.kernels.fake_quantize.moving_average_qparams import reference
from fxquant.observers import MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
EPS = 2.0**-23


def start(channels: int | None, device: str = "cpu") -> tuple[Tensor, Tensor]:
    shape = () if channels is None else (channels,)
    return torch.full(shape, torch.inf, device=device), torch.full(shape, -torch.inf, device=device)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("middle", [None, 0])
def test_native_is_the_reference(
    device: str, dtype: torch.dtype, view: Callable[[Tensor], Tensor], axis: int | None, middle: int | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    ranges = other = start(None if axis is None else view(torch.empty(3, 5, 17, 9)).shape[axis], device)
    for i in range(3):
        x = torch.randn(3, 5, 17, 9, generator=generator) * (i + 1)
        if i == 1:
            x[0, 0, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf] * 3)
        x = view(x.to(dtype).to(device))
        if x.numel() == 0:
            with pytest.raises(RuntimeError, match="x is empty"):
                moving_average_qparams(x, *ranges, axis, 0.3, EPS, -128, 127, middle)
            return
        got = moving_average_qparams(x, *ranges, axis, 0.3, EPS, -128, 127, middle)
        expected = reference(x, *other, axis, 0.3, EPS, -128, 127, middle)
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
        ranges, other = got[:2], expected[:2]


@pytest.mark.parametrize("extremes", [(-3e38, 3e38), (0.0, 0.0), (1.0, 2.0), (-2.0, -1.0), (-1e-45, 1e-45)])
@pytest.mark.parametrize("middle", [None, 128])
def test_unusual_ranges(device: str, extremes: tuple[float, float], middle: int | None) -> None:
    x = torch.tensor(extremes, device=device)
    arguments = (x, *start(None, device), None, 0.01, EPS, 0, 255, middle)
    for a, b in zip(moving_average_qparams(*arguments), reference(*arguments), strict=True):
        assert torch.equal(a, b)


def test_a_channel_that_shows_nothing_finite_keeps_its_range(device: str) -> None:
    ranges = torch.tensor([-1.0, torch.inf], device=device), torch.tensor([1.0, -torch.inf], device=device)
    x = torch.full((2, 4), torch.nan, device=device)
    low, high, scale, _, nonfinite = moving_average_qparams(x, *ranges, 0, 0.5, EPS, 0, 255, None)
    assert torch.equal(low, ranges[0])
    assert torch.equal(high, ranges[1])
    assert scale.tolist() == pytest.approx([2 / 255, EPS])
    assert nonfinite.item() == 8


def test_the_observers_answer_the_same(device: str) -> None:
    tensor = MovingAverageMinMaxObserver(averaging_constant=0.2)
    channel = MovingAveragePerChannelMinMaxObserver(averaging_constant=0.2, ch_axis=1, qscheme="per_channel_symmetric")
    for observer, axis, middle in ((tensor, None, None), (channel, 1, 128)):
        ranges = start(None if axis is None else 3)
        for i in range(3):
            x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(i)) * (i + 1)
            observer(x)
            low, high, scale, zero_point, _ = moving_average_qparams(x, *ranges, axis, 0.2, EPS, 0, 255, middle)
            ranges = low, high
        assert torch.equal(low, observer.min_val)
        assert torch.equal(high, observer.max_val)
        assert torch.equal(scale, observer.calculate_qparams()[0])
        assert torch.equal(zero_point, observer.calculate_qparams()[1])


def test_several_threads_measure_parts(device: str) -> None:
    x = torch.randn(64, 32, 40, 40, generator=torch.Generator().manual_seed(0)).to(device)
    for each in (x, x.contiguous(memory_format=torch.channels_last)):
        low, high, *_ = moving_average_qparams(each, *start(32, device), 1, 0.1, EPS, 0, 255, None)
        assert torch.equal(low, x.amin((0, 2, 3)))
        assert torch.equal(high, x.amax((0, 2, 3)))


@pytest.mark.parametrize("axis", [None, 1])
def test_the_operator_passes_the_checks_of_the_framework(axis: int | None) -> None:
    arguments = (torch.randn(2, 3), *start(None if axis is None else 3), axis, 0.1, EPS, 0, 255, None)
    torch.library.opcheck(torch.ops.fxquant.moving_average_qparams.default, arguments)


@pytest.mark.parametrize("function", [moving_average_qparams, reference])
def test_bad_arguments(function: Callable[..., object], assert_message: Callable[..., None]) -> None:
    op = "fxquant::moving_average_qparams"
    with pytest.raises(RuntimeError) as caught:
        function(torch.ones(2, 3), *start(2), 1, 0.1, EPS, 0, 255, None)
    assert_message(caught.value, f"{op}: running_min has the wrong shape", "[2]", "[3]")
    with pytest.raises(RuntimeError) as caught:
        function(torch.ones(2, 3).int(), *start(None), None, 0.1, EPS, 0, 255, None)
    assert f"{op}: x has the wrong dtype" in str(caught.value)
    with pytest.raises(RuntimeError) as caught:
        function(torch.ones(2), *start(None), None, 0.1, EPS, 5, 4, None)
    assert_message(caught.value, f"{op}: quant_min is above quant_max", "5 and 4", "quant_min <= quant_max")
    with pytest.raises(RuntimeError) as caught:
        function(torch.ones(2), *start(None), None, 0.1, EPS, 0, 255, 2**31)
    assert_message(caught.value, f"{op}: a zero point lies outside [quant_min, quant_max]", f"{2**31}", "0 to 255")
    for numbers, name, got in (((math.nan, EPS), "averaging_constant", "nan"), ((0.1, math.inf), "eps", "inf")):
        with pytest.raises(RuntimeError) as caught:
            function(torch.ones(2), *start(None), None, *numbers, 0, 255, None)
        assert_message(caught.value, f"{op}: {name} is out of range", got, "a finite float32")


def test_each_range_keeps_its_shape(device: str) -> None:
    ranges = torch.full((), torch.inf), torch.full((1,), -torch.inf)
    for function in (moving_average_qparams, reference):
        low, high, *_ = function(torch.ones(2), *ranges, None, 0.1, EPS, 0, 255, None)
        assert (low.shape, high.shape) == ((), (1,))


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero_point"), [(-1.0, 3.0, 2.0**-30, -(2**30)), (-3.0, 1.0, 2.0**-30, 2**30)]
)
def test_a_grid_of_all_int32_has_more_steps_than_an_int32(
    device: str, low: float, high: float, scale: float, zero_point: int
) -> None:
    x = torch.tensor([low, high], device=device)
    for operator in (moving_average_qparams, reference):
        got = operator(x, *start(None, device), None, 1.0, 1e-20, -(2**31), 2**31 - 1, None)
        assert got[2].item() == scale
        assert got[3].item() == zero_point
