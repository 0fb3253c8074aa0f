"""``fxquant::dequantize``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fxquant.kernels import dequantize
from fxquant.kernels.quantize.dequantize import reference

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32]


def image(dtype: torch.dtype, device: str) -> Tensor:
    info = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(1)
    q = torch.randint(info.min, info.max + 1, (3, 5, 17, 9), generator=generator, dtype=torch.int64)
    q.view(-1)[:2] = torch.tensor([info.min, info.max])
    return q.to(dtype).to(device)


def qparams(channels: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(channels)
    scale = torch.rand(channels, generator=generator) + 0.03
    return scale.to(device), torch.randint(-99, 99, (channels,), generator=generator, dtype=torch.int32).to(device)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_native_is_the_reference(
    device: str,
    dtype: torch.dtype,
    axis: int | None,
    view: Callable[[Tensor], Tensor],
    assert_same: Callable[..., None],
) -> None:
    q = view(image(dtype, device))
    scale, zero_point = qparams(1 if axis is None else q.shape[axis], device)
    assert_same(dequantize(q, scale, zero_point, axis), reference(q, scale, zero_point, axis))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_difference_is_exact_and_the_product_rounded_once(device: str, dtype: torch.dtype) -> None:
    q = image(dtype, device)
    scale, zero_point = torch.tensor(0.1, device=device), torch.tensor(-(2**31), device=device)
    difference = q.long() + 2**31
    expected = difference.to(torch.float32).double() * scale.double()  # exact: 24 times 24 bits
    assert torch.equal(dequantize(q, scale, zero_point), expected.float())


@pytest.mark.parametrize("zero_dtype", [torch.int64, torch.int16, torch.uint8, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float64])
def test_any_dtype_of_qparams(device: str, zero_dtype: torch.dtype, scale_dtype: torch.dtype) -> None:
    q = image(torch.uint8, device)
    scale = torch.tensor([0.1], dtype=scale_dtype, device=device)
    y = dequantize(q, scale, torch.tensor([114], device=device).to(zero_dtype))
    assert torch.equal(y, (q.int() - 114) * torch.tensor(0.1))


ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"q": torch.zeros(2, 3)}, "q has the wrong dtype", "torch.float32", "uint8, int8, int16 or int32"),
    ({"axis": -3}, "axis is out of range", "-3", "a dimension of the tensor, which has 2"),
    ({"axis": 1}, "scale has the wrong shape", "[1]", "[3]"),
    ({"zero_point": torch.zeros(2)}, "zero_point has the wrong shape", "[2]", "[1]"),
    ({"scale": torch.ones(1, 1)}, "scale has the wrong shape", "[1, 1]", "[1]"),
    (
        {"zero_point": torch.tensor([0.25])},
        "a zero point is no int32",
        "0.25",
        "integers of 32 bits, in any integer or floating dtype",
    ),
]


@pytest.mark.parametrize(("changed", "what", "got", "expected"), ERRORS)
def test_errors(
    changed: dict[str, Any], what: str, got: str, expected: str, assert_message: Callable[..., None]
) -> None:
    arguments: dict[str, Any] = {
        **{"q": torch.zeros(2, 3, dtype=torch.uint8), "scale": torch.ones(1), "zero_point": torch.zeros(1)},
        **changed,
    }
    for function in (dequantize, reference):
        with pytest.raises(RuntimeError) as error:
            function(**arguments)
        assert_message(error.value, f"fxquant::dequantize: {what}", got, expected)


def test_meta_tensors_give_shapes() -> None:
    q = torch.empty(2, 3, 4, 5, dtype=torch.int8, device="meta").contiguous(memory_format=torch.channels_last)
    y = dequantize(q, torch.empty(1, device="meta"), torch.empty(1, device="meta"))
    assert y.dtype == torch.float32
    assert y.stride() == q.stride()


@pytest.mark.parametrize("axis", [None, 1])
def test_opcheck(axis: int | None) -> None:
    q = image(torch.uint8, "cpu")
    torch.library.opcheck(torch.ops.fxquant.dequantize.default, (q, *qparams(1 if axis is None else 5, "cpu"), axis))


def test_numbers_are_taken_for_qparams(device: str) -> None:
    q = image(torch.uint8, device)
    expected = dequantize(q, torch.tensor([0.1], device=device), torch.tensor([3], device=device))
    assert torch.equal(dequantize(q, 0.1, 3), expected)


@pytest.mark.parametrize("shape", [(2, 0, 1), (2, 0), (0, 0, 1), (0,), (2, 0, 3)])
def test_an_axis_of_length_zero_gives_nothing(shape: tuple[int, ...]) -> None:
    axis = shape.index(0) if len(shape) == 1 else 1
    scale, zero_point = torch.ones(0), torch.zeros(0, dtype=torch.int32)
    values = torch.ops.fxquant.dequantize(torch.zeros(shape, dtype=torch.uint8), scale, zero_point, axis)
    quantized = torch.ops.fxquant.quantize(torch.zeros(shape), scale, zero_point, 0, 255, torch.uint8, axis)
    assert (values.shape, values.dtype) == (shape, torch.float32)
    assert (quantized.shape, quantized.dtype) == (shape, torch.uint8)
