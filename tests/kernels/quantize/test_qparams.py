"""Scale and zero point as arguments."""

from __future__ import annotations

import pytest
import torch

from fxquant.errors import KernelError
from fxquant.kernels.quantize.qparams import along, as_tensors, scale_values, zero_point_values


def test_along_an_axis_values_broadcast() -> None:
    x = torch.zeros(2, 3, 4)
    values = torch.arange(3.0)
    assert along(values, x, 1).shape == (1, 3, 1)
    assert (x + along(values, x, 1))[1, :, 3].tolist() == [0.0, 1.0, 2.0]
    assert along(values[:1], x, None).shape == ()


def test_scales_become_float32() -> None:
    assert scale_values(torch.tensor([0.1], dtype=torch.float64)).tolist() == torch.tensor([0.1]).tolist()
    assert scale_values(torch.tensor([0.5], dtype=torch.float16)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.float64, torch.bfloat16])
def test_zero_points_become_int32(dtype: torch.dtype) -> None:
    values = zero_point_values("op", torch.tensor([0, 3, 128]).to(dtype))
    assert values.dtype == torch.int32
    assert values.tolist() == [0, 3, 128]


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (0.5, "0.5"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (2**31, "2.14748e+09"),
        (-(2**31) - 1, "-2.14748e+09"),
    ],
)
def test_zero_points_that_are_no_int32_are_refused(value: float, got: str) -> None:
    with pytest.raises(KernelError) as error:
        zero_point_values("op", torch.tensor([0, value], dtype=torch.float64))
    assert str(error.value) == (
        f"op: a zero point is no int32\n  got:      {got}\n"
        "  expected: integers of 32 bits, in any integer or floating dtype"
    )


def test_numbers_become_tensors_and_tensors_stay() -> None:
    x, scale, zero_point = torch.zeros(2), torch.ones(2), torch.zeros(2, dtype=torch.int8)
    kept = as_tensors(x, scale, zero_point)
    assert kept[0] is scale
    assert kept[1] is zero_point
    made = as_tensors(x, 0.1, 3)
    assert [value.dtype for value in made] == [torch.float32, torch.int64]
    assert [value.shape for value in made] == [(), ()]
    assert made[0].item() == torch.tensor(0.1).item()
