"""The formula of the references, by hand and against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from fxquant.errors import KernelError
from fxquant.kernels.quantize.affine import make_affine_qparams

HALF, THREE = torch.tensor([0.5]), torch.tensor([3], dtype=torch.int32)


def test_steps_and_values_by_hand() -> None:
    x = torch.tensor([0.25, 0.75, -0.25, torch.nan, torch.inf, -torch.inf, 1e30])
    qparams = make_affine_qparams("op", "x", x, HALF, THREE, None, 0, 255)
    q = qparams.round_to_quantized(x)
    assert q[:3].tolist() == [3.0, 5.0, 3.0]
    assert qparams.saturate(q).tolist() == [3.0, 5.0, 3.0, 0.0, 255.0, 0.0, 255.0]
    assert qparams.inside(q).tolist() == [True, True, True, False, False, False, False]
    assert qparams.dequantize(qparams.saturate(q))[:3].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_operation_is_rounded_once(dtype: torch.dtype) -> None:
    """Against fractions: 1 / scale, x * that, the difference, the product."""

    def rounded(value: Fraction) -> float:
        return torch.tensor(value.numerator / value.denominator, dtype=torch.float64).to(dtype).item()

    scale = torch.tensor([0.1])
    x = torch.tensor([0.7], dtype=dtype)
    qparams = make_affine_qparams("op", "x", x, scale, THREE, None, 0, 255)
    assert qparams.inverse.item() == rounded(1 / Fraction(scale.item()))
    (step,) = qparams.round_to_quantized(x).tolist()
    assert step == 7 + 3
    assert qparams.dequantize(qparams.round_to_quantized(x)).item() == rounded(7 * Fraction(scale.item()))


@pytest.mark.parametrize(
    ("limits", "dtype", "expected"),
    [
        ((-128, 127), torch.float32, (-128, 127)),
        ((-(2**31), 2**31 - 1), torch.float32, (-(2**31), 2**31 - 128)),
        ((-(2**31) + 1, 2**24 + 1), torch.float32, (-(2**31) + 128, 2**24)),
        ((-(2**31) + 1, 2**31 - 1), torch.float64, (-(2**31) + 1, 2**31 - 1)),
    ],
)
def test_a_limit_that_is_no_float_moves_inwards(
    limits: tuple[int, int], dtype: torch.dtype, expected: tuple[int, int]
) -> None:
    qparams = make_affine_qparams("op", "x", torch.zeros(1, dtype=dtype), HALF, THREE, None, *limits)
    assert (int(qparams.low), int(qparams.high)) == expected


def test_a_grid_for_each_channel() -> None:
    x = torch.ones(2, 3, 2)
    qparams = make_affine_qparams("op", "x", x, torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 2]), 1, 0, 255)
    assert qparams.scale.shape == (1, 3, 1)
    assert qparams.round_to_quantized(x)[0].tolist() == [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]]  # ties to even


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_floats_are_computed_in_float32(dtype: torch.dtype) -> None:
    x = torch.tensor([0.1], dtype=dtype)
    qparams = make_affine_qparams("op", "x", x, torch.tensor([1e-4]), THREE, None, 0, 65535)
    assert qparams.round_to_quantized(x).dtype == torch.float32
    assert qparams.round_to_quantized(x).item() == torch.round(x.float() * (1.0 / torch.tensor([1e-4]))).item() + 3


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(KernelError) as error:
        make_affine_qparams("op", "x", torch.zeros(1, dtype=torch.int8), HALF, THREE, None, 0, 255)
    assert str(error.value) == (
        "op: x has the wrong dtype\n  got:      torch.int8\n  expected: float32, float64, float16 or bfloat16"
    )
