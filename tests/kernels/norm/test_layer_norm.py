"""``fxquant::layer_norm``: native against reference to the bit, the reference against layer norm in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.norm.layer_norm import MOST_COLUMNS, STEP_BITS, layer_norm, reference, step_factor

GENERATOR = torch.Generator().manual_seed(0)
QPARAMS = (1 / 40, 120, 0, 255, torch.uint8)
SIGNED = (1 / 33, -7, -128, 127, torch.int8)

NEAR = 1e-3
"""Steps from a rounding boundary within which float32 may round the other way, as the contract of parity says."""


def row(*shape: int, spread: float = 1.0, offset: float = 0.0) -> Tensor:
    return torch.randn(shape, generator=GENERATOR) * spread + offset


def coefficients(columns: int) -> tuple[Tensor, Tensor]:
    return row(columns) + 1, row(columns)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("qparams", [QPARAMS, SIGNED])
@pytest.mark.parametrize("columns", [1, 2, 7, 16, 33, 96, 768])
@pytest.mark.parametrize(("spread", "offset"), [(1.0, 0.3), (1e-20, 0.0), (1e30, 0.0), (1e-3, 5.0), (0.0, 0.0)])
def test_real_rows_equal_the_reference(device, assert_same, qparams, columns, spread, offset):
    x = row(2, 3, columns, spread=spread, offset=offset).to(device)
    arguments = (*(c.to(device) for c in coefficients(columns)), 1e-6, 1.0, *qparams)
    assert_same(layer_norm(x, *arguments), reference(x, *arguments))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("qparams", [QPARAMS, SIGNED])
@pytest.mark.parametrize("shape", [(4, 1), (2, 3, 50), (1, 256), (300,)])
@pytest.mark.parametrize("x_scale", [1e-4, 0.07, 3.0])
def test_stored_rows_equal_the_reference(device, stored, assert_same, dtype, qparams, shape, x_scale):
    x = stored(*shape, dtype=dtype)
    arguments = (*(c.to(device) for c in coefficients(shape[-1])), 1e-5, x_scale, *qparams)
    assert_same(layer_norm(x, *arguments), reference(x, *arguments))


@pytest.mark.parametrize("columns", [15, 17, 33, 63, 64, 65, 96, 127, 1024, 1025, 4099])
def test_several_rows_are_under_way_at_once(device, stored, assert_same, columns):
    x = row(7, columns)
    x[1, -1], x[2, 0], x[4], x[5] = math.nan, math.inf, 0.0, -1e30
    arguments = (*(c.to(device) for c in coefficients(columns)), 1e-6, 0.1, *QPARAMS)
    for rows in (x.to(device), stored(7, columns), stored(6, columns, dtype=torch.int8)):
        assert_same(layer_norm(rows, *arguments), reference(rows, *arguments))
    least = torch.full((5, columns), -128, dtype=torch.int8, device=device)
    assert_same(layer_norm(least, *arguments), reference(least, *arguments))


@pytest.mark.parametrize(("value", "dtype"), [(255, torch.uint8), (-128, torch.int8), (127, torch.int8)])
def test_sums_of_the_longest_row_fit(device, assert_same, value, dtype):
    x = torch.full((1, MOST_COLUMNS), value, dtype=dtype, device=device)
    x[0, ::3] = 0
    arguments = (*(c.to(device) for c in coefficients(MOST_COLUMNS)), 1e-5, 0.1, *QPARAMS)
    assert_same(layer_norm(x, *arguments), reference(x, *arguments))


@pytest.mark.parametrize("value", [2.0**21 + 0.5, 2.0**21 + 1.5, 2.0**22 - 0.5, -(2.0**22) + 0.5])
def test_ties_are_rounded_to_even_up_to_the_largest_step(device, assert_same, value):
    """Steps are whole numbers here: those of the largest magnitude are not rounded, halves of them are."""
    x = torch.full((1, 40), 0.5, device=device)
    x[0, 0], x[0, 1], x[0, 2] = 2.0**22 - 1.0, value, -1.5
    arguments = (*(c.to(device) for c in coefficients(40)), 1e-5, 1.0, *QPARAMS)
    assert_same(layer_norm(x, *arguments), reference(x, *arguments))


def test_nan_infinity_and_subnormal_numbers(device, assert_same):
    x = row(6, 20)
    x[0, 3], x[1, 0], x[2, 19] = math.nan, math.inf, -math.inf
    x[3], x[4] = 1e-42, row(20, spread=1e-41)
    x = x.to(device)
    arguments = (*(c.to(device) for c in coefficients(20)), 0.0, 1.0, *QPARAMS)
    found = layer_norm(x, *arguments)
    assert_same(found, reference(x, *arguments))
    assert (found[:3] == 0).all()


def test_a_row_of_equal_numbers_without_eps_is_nan(device):
    x, one, zero = torch.ones(1, 5, device=device), torch.ones(5, device=device), torch.zeros(5, device=device)
    assert (layer_norm(x, one, zero, 0.0, 1.0, *QPARAMS) == 0).all()
    assert (layer_norm(x, one, zero, 1e-5, 1.0, *QPARAMS) == 120).all()


def test_views_and_empty_tensors(device, assert_same):
    x = row(4, 6, 10).to(device)
    for view in (x.transpose(0, 2), x[:, ::2], x[..., 3:], x[:0], x[..., :0], x[0, 0]):
        arguments = (*(c.to(device) for c in coefficients(view.shape[-1])), 1e-5, 1.0, *QPARAMS)
        assert_same(layer_norm(view, *arguments), reference(view, *arguments))


@settings(deadline=None)
@given(st.integers(2, 70), st.floats(-12, 12), st.floats(-20, 20), st.integers(0, 2**31))
def test_the_reference_is_layer_norm(columns, power, offset, seed):
    """Whatever the magnitude, and with means of up to twenty standard deviations."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(3, columns, generator=generator) + offset) * 2.0**power
    weight, bias = torch.randn(columns, generator=generator), torch.randn(columns, generator=generator)
    exact = F.layer_norm(x.double(), (columns,), weight.double(), bias.double(), 1e-5) * 40 + 120
    q = reference(x, weight, bias, 1e-5, 1.0, *QPARAMS)
    unclear = (exact - exact.floor() - 0.5).abs() < NEAR
    assert torch.equal(q[~unclear], exact.round().clamp(0, 255)[~unclear].to(torch.uint8))


@settings(deadline=None)
@given(st.floats(2.0**-104, 2.0**126, width=32))
def test_the_largest_magnitude_uses_all_steps(largest):
    x = torch.tensor([[0.0, -largest]])
    assert 2 ** (STEP_BITS - 1) <= largest * step_factor(x).item() <= 2**STEP_BITS


def test_stored_integers_are_the_numbers_that_they_stand_for(stored):
    x = stored(5, 64)
    weight, bias = coefficients(64)
    exact = F.layer_norm((x.double() - 17) * 0.25, (64,), weight.double(), bias.double(), 1e-5) * 40 + 120
    q = reference(x, weight, bias, 1e-5, 0.25, *QPARAMS)
    unclear = (exact - exact.floor() - 0.5).abs() < NEAR
    assert torch.equal(q[~unclear], exact.round().clamp(0, 255)[~unclear].to(torch.uint8))


ONE, ZERO = torch.ones(2), torch.zeros(2)


@pytest.mark.parametrize("function", [layer_norm, reference])
@pytest.mark.parametrize(
    ("arguments", "what", "got", "expected"),
    [
        (
            (torch.zeros(2).half(), ONE, ZERO, 1e-5, 1.0, *QPARAMS),
            "x has the wrong dtype",
            "torch.float16",
            "float32, uint8 or int8",
        ),
        (
            (torch.zeros(2), ONE.double(), ZERO, 1e-5, 1.0, *QPARAMS),
            "weight has the wrong dtype",
            "torch.float64",
            "float32",
        ),
        ((torch.zeros(2), ONE, torch.zeros(3), 1e-5, 1.0, *QPARAMS), "bias has the wrong shape", "[3]", "[2]"),
        ((torch.zeros(2), ONE, ZERO, -1.0, 1.0, *QPARAMS), "eps is out of range", "-1", "0 or a small positive number"),
        (
            (torch.zeros(1, MOST_COLUMNS + 1), ONE, ZERO, 1e-5, 1.0, *QPARAMS),
            "a row is too long for an exact sum of squares",
            "524289",
            "at most 524288 columns",
        ),
    ],
)
def test_wrong_arguments(function, arguments, what, got, expected, assert_message):
    with pytest.raises(RuntimeError) as error:
        function(*arguments)
    assert_message(error.value, f"fxquant::layer_norm: {what}", got, expected)
    if function is reference:
        assert isinstance(error.value, KernelError)


def test_opcheck(device):
    for x in (row(3, 5), torch.tensor([[1, 2, 3, 4, 200]], dtype=torch.uint8)):
        arguments = (x.to(device), *(c.to(device) for c in coefficients(5)), 1e-5, 0.1, *QPARAMS)
        torch.library.opcheck(torch.ops.fxquant.layer_norm.default, arguments)
