"""``fxquant::softmax``: native against reference to the bit, the reference against softmax in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.norm.softmax import EXP_BITS, exp_steps, reference, softmax

GENERATOR = torch.Generator().manual_seed(0)
FULL = (1 / 256, 0, 0, 255, torch.uint8)
FINE = (1 / 4096, 0, 0, 255, torch.uint8)
SIGNED = (1 / 300, -120, -128, 127, torch.int8)

EXP_ERROR = 4e-7
"""Of an exponential, relative: the series, the rounding of its sum, and of the exponent, which is at most 40."""
NEAR = 1e-3
"""Steps from a rounding boundary within which float32 may round the other way, as the contract of parity says."""


def scores(*shape: int, spread: float = 3.0) -> Tensor:
    return torch.randn(shape, generator=GENERATOR) * spread


@pytest.mark.one_in(3)
@pytest.mark.parametrize("qparams", [FULL, FINE, SIGNED])
@pytest.mark.parametrize("columns", [1, 2, 7, 16, 49, 64, 197, 1000])
@pytest.mark.parametrize("spread", [0.1, 3.0, 80.0])
def test_real_rows_equal_the_reference(device, assert_same, qparams, columns, spread):
    x = scores(3, 5, columns, spread=spread).to(device)
    assert_same(softmax(x, 1.0, False, *qparams), reference(x, 1.0, False, *qparams))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("qparams", [FULL, FINE, SIGNED])
@pytest.mark.parametrize("shape", [(4, 1), (2, 3, 50), (1, 256), (300,)])
@pytest.mark.parametrize("x_scale", [1e-3, 0.07, 3.0])
def test_stored_rows_equal_the_reference(device, stored, assert_same, dtype, qparams, shape, x_scale):
    x = stored(*shape, dtype=dtype)
    assert_same(softmax(x, x_scale, False, *qparams), reference(x, x_scale, False, *qparams))


def assert_same_rows(device, stored, assert_same, columns: int) -> None:
    """Of eleven rows: with several under way at once, some are left over."""
    x = scores(11, columns)
    x[1, -1], x[2, 0], x[3], x[5], x[6], x[7, columns // 2] = math.nan, math.inf, -math.inf, 2.0, -0.0, -math.inf
    x[8, -1], x[9, 0] = -torch.tensor(math.nan), 1e30
    x = x.to(device)
    assert_same(softmax(x, 1.0, True, *FULL), reference(x, 1.0, True, *FULL))
    for dtype in (torch.uint8, torch.int8):
        q = stored(11, columns, dtype=dtype)
        q[5] = 100
        assert_same(softmax(q, 0.05, False, *FINE), reference(q, 0.05, False, *FINE))


def test_rows_of_every_short_length(device, stored, assert_same):
    """What the registers hold of a row twice counts once."""
    for columns in range(1, 67):
        assert_same_rows(device, stored, assert_same, columns)


@pytest.mark.parametrize("columns", [95, 96, 128, 197, 1023, 1024, 1025])
def test_long_rows(device, stored, assert_same, columns):
    assert_same_rows(device, stored, assert_same, columns)


@pytest.mark.parametrize("safe", [False, True])
def test_nan_and_infinity(device, assert_same, safe):
    x = scores(8, 20)
    x[0, 3], x[1, 0], x[2, 19], x[3], x[5, :7] = math.nan, math.inf, -math.inf, -math.inf, -math.inf
    x[4, 1], x[6] = -torch.tensor(math.nan), math.nan
    x = x.to(device)
    qparams = (1 / 256, 3, 1, 255, torch.uint8)
    found = softmax(x, 1.0, safe, *qparams)
    assert_same(found, reference(x, 1.0, safe, *qparams))
    expected = torch._safe_softmax(x, -1) if safe else torch.softmax(x, -1)
    for row in (0, 1, 4, 6):
        assert expected[row].isnan().all()
        assert (found[row] == 1).all()
    assert (found[3] == (3 if safe else 1)).all()  # zero, or NaN
    assert found[2, 19] == found[5, 0] == 3


def test_views_and_empty_tensors(device, assert_same):
    x = scores(4, 6, 10).to(device)
    for view in (x.transpose(0, 2), x[:, ::2], x[..., 3:], x[:0], x[..., :0], x[0, 0]):
        assert_same(softmax(view, 1.0, False, *FULL), reference(view, 1.0, False, *FULL))


@settings(deadline=None)
@given(st.integers(1, 70), st.floats(1e-3, 50), st.integers(0, 2**31))
def test_the_reference_is_softmax(columns, spread, seed):
    x = torch.randn(4, columns, generator=torch.Generator().manual_seed(seed)) * spread
    steps = torch.softmax(x.double(), -1) * 4096
    q = reference(x, 1.0, False, *FINE)
    unclear = ((steps - steps.floor() - 0.5).abs() < NEAR) | (steps > 255)
    assert torch.equal(q[~unclear], steps.round()[~unclear].to(torch.uint8))
    assert (q[steps > 255.5] == 255).all()


@settings(deadline=None)
@given(st.floats(-60, 0, width=32))
def test_exponentials(x):
    steps = exp_steps(torch.tensor([x])).item()
    exact = math.exp(x) * 2**EXP_BITS
    assert abs(steps - exact) <= 0.5 + EXP_ERROR * exact + 2.0**-10 * 2


def test_the_sum_of_a_row_is_one():
    q = reference(scores(50, 100, spread=0.3), 1.0, False, 1 / 4096, 0, 0, 255, torch.uint8)
    assert ((q.sum(-1) - 4096).abs() <= 50).all()  # each of 100 is off by half a step at most


@pytest.mark.parametrize("function", [softmax, reference])
@pytest.mark.parametrize(
    ("arguments", "what", "got", "expected"),
    [
        (
            (torch.zeros(2).double(), 1.0, False, *FULL),
            "x has the wrong dtype",
            "torch.float64",
            "float32, uint8 or int8",
        ),
        ((torch.zeros(()), 1.0, False, *FULL), "x has no dimension", "[]", "[..., columns]"),
        (
            (torch.zeros(2), 1.0, False, 1.0, 0, 0, 255, torch.int32),
            "dtype has the wrong dtype",
            "torch.int32",
            "uint8 or int8",
        ),
        (
            (torch.zeros(2, dtype=torch.uint8), 0.0, False, *FULL),
            "x_scale is unusable",
            "0",
            "a positive, normal float32",
        ),
        (
            (torch.zeros(2), 1.0, False, 0.0, 0, 0, 255, torch.uint8),
            "scale is unusable",
            "0",
            "a positive, normal float32",
        ),
        (
            (torch.zeros(2), 1.0, False, 1.0, 300, 0, 255, torch.uint8),
            "zero_point is out of range",
            "300",
            "0 to 255",
        ),
    ],
)
def test_wrong_arguments(function, arguments, what, got, expected, assert_message):
    with pytest.raises(RuntimeError) as error:
        function(*arguments)
    assert_message(error.value, f"fxquant::softmax: {what}", got, expected)
    if function is reference:
        assert isinstance(error.value, KernelError)


def test_opcheck(device):
    for x in (scores(3, 5), torch.tensor([[1, 200]], dtype=torch.uint8)):
        torch.library.opcheck(torch.ops.fxquant.softmax.default, (x.to(device), 0.1, True, *FULL))
