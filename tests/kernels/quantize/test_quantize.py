"""``fxquant::quantize``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.kernels import dequantize, quantize
from fxquant.kernels.quantize.quantize import reference

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
ALL_HALVES = torch.arange(-(2**15), 2**15).to(torch.int16)
"""Every pattern of 16 bits, to be viewed as float16 or bfloat16."""


def image(dtype: torch.dtype, device: str) -> Tensor:
    x = torch.randn(3, 5, 17, 9, generator=torch.Generator().manual_seed(1)) * 30
    x.view(-1)[:5] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 3e38])
    return x.to(dtype).to(device)


def qparams(channels: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(channels)
    scale = torch.rand(channels, generator=generator) + 0.03
    return scale.to(device), torch.randint(0, 100, (channels,), generator=generator, dtype=torch.int32).to(device)


def limits(dtype: torch.dtype) -> tuple[int, int]:
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


@pytest.mark.one_in(3)
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_native_is_the_reference(
    device: str,
    source: torch.dtype,
    dtype: torch.dtype,
    view: Callable[[Tensor], Tensor],
    assert_same: Callable[..., None],
) -> None:
    x = view(image(source, device))
    for axis in (None, 1, -1):
        scale, zero_point = qparams(1 if axis is None else x.shape[axis], device)
        for channels_last in (False, True):
            arguments = (x, scale, zero_point, *limits(dtype), dtype, axis, channels_last)
            assert_same(quantize(*arguments), reference(*arguments))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 31, 32, 33, 70])
@pytest.mark.parametrize("axis", [None, 1])
def test_images_become_channels_last(
    device: str, channels: int, axis: int | None, assert_same: Callable[..., None]
) -> None:
    """One block of pixels and a part of another, of one block of channels and a part of another."""
    x = torch.randn(2, channels, 19, 15, device=device) * 30
    scale, zero_point = qparams(1 if axis is None else channels, device)
    q = quantize(x, scale, zero_point, 0, 255, torch.uint8, axis, channels_last=True)
    assert q.is_contiguous(memory_format=torch.channels_last)
    assert_same(q, reference(x, scale, zero_point, 0, 255, torch.uint8, axis, channels_last=True))
    assert torch.equal(q, quantize(x, scale, zero_point, 0, 255, torch.uint8, axis))


@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16])
def test_every_16_bit_float(device: str, source: torch.dtype, assert_same: Callable[..., None]) -> None:
    x = ALL_HALVES.view(source).to(device)
    for scale in (2.0**-26, 1.0, 3.0):  # subnormal float16 numbers apart, then large ones
        arguments = (x, torch.tensor([scale], device=device), torch.tensor([0], device=device))
        q = quantize(*arguments, *limits(torch.int32), torch.int32)
        assert_same(q, reference(*arguments, *limits(torch.int32), torch.int32))


def test_values_by_hand(device: str) -> None:
    x = torch.tensor([0.25, 0.75, 1.25, -0.25, -0.75, -1.25, torch.nan, torch.inf, -torch.inf, 1e30], device=device)
    half, three = torch.tensor(0.5, device=device), torch.tensor(3, device=device)
    assert quantize(x, half, three, 0, 255, torch.uint8).tolist() == [3, 5, 5, 3, 1, 1, 0, 255, 0, 255]
    assert quantize(x, half, three, -128, 127, torch.int8).tolist() == [3, 5, 5, 3, 1, 1, -128, 127, -128, 127]
    # A ReLU is the lower limit at the zero point, and a lower limit above it is a hardtanh that does not hold 0
    assert quantize(x, half, three, 3, 255, torch.uint8).tolist()[:6] == [3, 5, 5, 3, 3, 3]
    assert quantize(x, half, three, 5, 6, torch.uint8).tolist()[:6] == [5, 5, 5, 5, 5, 5]
    # The largest int32 that is a float32 number
    assert quantize(x[7:], half, three, *limits(torch.int32), torch.int32).tolist() == [
        2147483520,
        -(2**31),
        2147483520,
    ]


def test_torch_gives_the_same() -> None:
    """ATen's own operator for plain integer tensors, off ties: it multiplies with 1 / scale too."""
    x = image(torch.float32, "cpu").nan_to_num(0.0, 0.0, 0.0)
    scale, zero_point = torch.tensor([0.21]), torch.tensor([117])
    fake = torch.fake_quantize_per_tensor_affine(x, 0.21, 117, 0, 255)
    q = quantize(x, scale, zero_point, 0, 255, torch.uint8)
    assert torch.equal(dequantize(q, scale, zero_point), fake)


def test_empty_gives_a_new_empty_tensor(device: str) -> None:
    scale, zero_point = qparams(1, device)
    x = torch.empty(0, 3, 4, 4, device=device)
    for channels_last in (False, True):
        q = quantize(x, scale, zero_point, 0, 255, torch.uint8, channels_last=channels_last)
        assert q.shape == x.shape
        assert q.dtype == torch.uint8


ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"x": torch.zeros(2, 3).int()}, "x has the wrong dtype", "torch.int32", "float32, float64, float16 or bfloat16"),
    ({"dtype": torch.int64}, "dtype has the wrong dtype", "torch.int64", "uint8, int8, int16 or int32"),
    ({"axis": 2}, "axis is out of range", "2", "a dimension of the tensor, which has 2"),
    ({"axis": 1}, "scale has the wrong shape", "[1]", "[3]"),
    ({"zero_point": torch.zeros(2)}, "zero_point has the wrong shape", "[2]", "[1]"),
    (
        {"zero_point": torch.tensor([2.0**31])},
        "a zero point is no int32",
        "2.14748e+09",
        "integers of 32 bits, in any integer or floating dtype",
    ),
    ({"quant_min": 9, "quant_max": 8}, "quant_min is above quant_max", "9 and 8", "quant_min <= quant_max"),
    (
        {"quant_min": -1},
        "quant_min and quant_max do not fit the integers they limit",
        "-1 and 255",
        "0 to 255",
    ),
    ({"channels_last": True}, "channels_last is for images only", "2 dimensions", "4: [N, C, H, W]"),
]


@pytest.mark.parametrize(("changed", "what", "got", "expected"), ERRORS)
def test_errors(
    changed: dict[str, Any], what: str, got: str, expected: str, assert_message: Callable[..., None]
) -> None:
    arguments: dict[str, Any] = {
        "x": torch.zeros(2, 3),
        "scale": torch.ones(1),
        "zero_point": torch.zeros(1),
        "quant_min": 0,
        "quant_max": 255,
        "dtype": torch.uint8,
        **changed,
    }
    for function in (quantize, reference):
        with pytest.raises(RuntimeError) as error:
            function(**arguments)
        assert_message(error.value, f"fxquant::quantize: {what}", got, expected)


def test_meta_tensors_give_shapes() -> None:
    x = torch.empty(2, 3, 4, 5, device="meta")
    scale, zero_point = torch.empty(1, device="meta"), torch.empty(1, device="meta")
    q = quantize(x, scale, zero_point, 0, 255, torch.uint8, channels_last=True)
    assert q.dtype == torch.uint8
    assert q.is_contiguous(memory_format=torch.channels_last)


def test_compiles_whole_with_dequantize_and_gives_the_same() -> None:
    scale, zero_point = qparams(3, "cpu")

    def function(x: Tensor) -> Tensor:
        q = quantize(x, scale, zero_point, 0, 255, torch.uint8, 1, channels_last=True)
        return dequantize(q, scale, zero_point, 1) + 1

    x = torch.randn(2, 3, 8, 8)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), function(x))


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("channels_last", [False, True])
def test_opcheck(axis: int | None, channels_last: bool) -> None:
    scale, zero_point = qparams(1 if axis is None else 3, "cpu")
    arguments = (torch.randn(2, 3, 4, 5), scale, zero_point, 0, 255, torch.uint8, axis, channels_last)
    torch.library.opcheck(torch.ops.fxquant.quantize.default, arguments)


@settings(max_examples=100, deadline=None)
@given(
    q=st.lists(st.integers(0, 255), min_size=1, max_size=70),
    scale=st.floats(width=32, min_value=2.0**-100, max_value=2.0**100),
    zero_point=st.integers(0, 255),
)
def test_every_step_survives_the_way_there_and_back(q: list[int], scale: float, zero_point: int) -> None:
    integers = torch.tensor(q, dtype=torch.uint8)
    qparams = torch.tensor([scale]), torch.tensor([zero_point])
    assert torch.equal(quantize(dequantize(integers, *qparams), *qparams, 0, 255, torch.uint8), integers)


def test_numbers_are_taken_for_qparams(device: str) -> None:
    x = torch.linspace(-3, 30, 101, device=device)
    scale, zero_point = torch.tensor([0.1], device=device), torch.tensor([3], device=device)
    expected = quantize(x, scale, zero_point, 0, 255, torch.uint8)
    assert torch.equal(quantize(x, 0.1, 3, 0, 255, torch.uint8), expected)
    assert torch.equal(quantize(x, scale, 3, 0, 255, torch.uint8), expected)
