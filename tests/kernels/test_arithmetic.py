"""Float32 scalars of the references, and their last step."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import average, check_output, check_qparams, float32, integer_range, inverse, requantize

SCALES = st.floats(2.0**-126, 2.0**126, width=32)


@settings(deadline=None)
@given(st.floats(allow_nan=False))
def test_float32_rounds_as_torch_does(value: float) -> None:
    assert float32(value) == torch.tensor(value, dtype=torch.float64).to(torch.float32).item()


@settings(deadline=None)
@given(SCALES)
def test_inverse_is_the_float32_quotient(scale: float) -> None:
    assert inverse(scale) == (torch.tensor(1.0, dtype=torch.float32) / torch.tensor(scale, dtype=torch.float32)).item()


def test_inverse_rounds_its_argument_first() -> None:
    third = 1 / 3
    assert inverse(third) == inverse(float32(third)) == (1.0 / torch.tensor(third, dtype=torch.float32)).item()


def test_requantize_rounds_to_even_before_the_zero_point() -> None:
    real = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5])
    assert requantize(real, 1.0, 11, 0, 255, torch.uint8).tolist() == [11, 13, 13, 11, 9]


@pytest.mark.parametrize(("dtype", "low", "high"), [(torch.uint8, 3, 250), (torch.int8, -120, 100)])
def test_requantize_saturates_and_sends_nan_to_the_lower_limit(dtype: torch.dtype, low: int, high: int) -> None:
    real = torch.tensor([math.inf, -math.inf, math.nan, 1e30, -1e30])
    q = requantize(real, 0.1, 7, low, high, dtype)
    assert q.dtype == dtype
    assert q.tolist() == [high, low, low, high, low]


@settings(deadline=None)
@given(
    real=st.floats(-1e6, 1e6, width=32), scale=st.floats(2.0**-20, 2.0**20, width=32), zero_point=st.integers(0, 255)
)
def test_requantize_is_the_formula(real: float, scale: float, zero_point: int) -> None:
    step = torch.tensor(real) * (1.0 / torch.tensor(scale))
    expected = (torch.round(step.double()) + zero_point).clamp(5, 250)
    assert requantize(torch.tensor(real), scale, zero_point, 5, 250, torch.uint8).item() == expected.item()


def test_average_divides_the_scale_and_not_the_sum() -> None:
    """Each rounding is part of the definition: another order differs in the last place, and then on ties."""
    sums, divisor = torch.arange(-3000, 3000), torch.tensor(49)
    factor = torch.tensor(0.1, dtype=torch.float32) / torch.tensor(49.0)
    expected = (torch.round(sums.float() * factor * inverse(0.07)) + 100).clamp(0, 255)
    assert torch.equal(average(sums, divisor, 0.1, 0.07, 100, 0, 255, torch.uint8).float(), expected)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, 1e-40, 1e39])
def test_unusable_scales_are_refused(scale: float) -> None:
    with pytest.raises(KernelError, match="fxquant::op: x_scale is unusable"):
        check_qparams("fxquant::op", "x_", scale, 0, torch.uint8)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_limits_and_zero_points_must_fit_the_dtype(dtype: torch.dtype) -> None:
    low, high = integer_range(dtype)
    assert (low, high) == (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    check_output("fxquant::op", 0.1, low, low, low, dtype)
    check_output("fxquant::op", 0.1, high, low, high, dtype)
    for zero_point, quant_min, quant_max in ((low - 1, low, high), (high + 1, low, high)):
        with pytest.raises(KernelError, match="zero_point is out of range"):
            check_output("fxquant::op", 0.1, zero_point, quant_min, quant_max, dtype)
    for quant_min, quant_max in ((low - 1, high), (low, high + 1), (high, low)):
        with pytest.raises(KernelError, match="quant_min and quant_max are out of range"):
            check_output("fxquant::op", 0.1, low, quant_min, quant_max, dtype)
