"""choose_qparams against the formula in float64 and exact arithmetic, and its errors."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxquant.errors import CalibrationError
from fxquant.observers import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver, PlaceholderObserver
from fxquant.observers.qparams import SMALLEST_SCALE, below_smallest_scale, choose_qparams, middle
from fxquant.plan.spec import QScheme

SCALE_ROUNDING = 2.0**-22
"""Relative: the range and the quotient are each rounded to float32 once, to half a unit in the last place (2**-24)."""

finite = st.floats(-(2.0**120), 2.0**120, width=32)


@settings(max_examples=150, deadline=None)
@given(ends=st.tuples(finite, finite), bits=st.integers(2, 16), signed=st.booleans(), symmetric=st.booleans())
def test_formula_in_exact_arithmetic(ends, bits, signed, symmetric):
    scheme = QScheme(bits=bits, signed=signed, symmetric=symmetric)
    low, high = min(ends), max(ends)
    qparams = choose_qparams(torch.tensor(low), torch.tensor(high), scheme)
    scale, zero_point = Fraction(qparams.scale.item()), qparams.zero_point.item()

    wide_low, wide_high = min(Fraction(low), Fraction(0)), max(Fraction(high), Fraction(0))
    steps = 2**bits - 1
    width = 2 * max(-wide_low, wide_high) if symmetric else wide_high - wide_low
    right = max(width / steps, Fraction(SMALLEST_SCALE))
    assert abs(scale - right) <= right * Fraction(SCALE_ROUNDING)
    if symmetric:
        assert zero_point == (0 if signed else 2 ** (bits - 1))
    else:
        exact = scheme.quant_min - wide_low / scale
        assert abs(zero_point - min(max(exact, scheme.quant_min), scheme.quant_max)) <= Fraction(1, 2) + Fraction(1, 64)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (QScheme(signed=True), 0),
        (QScheme(signed=False), 128),
        (QScheme(signed=True, limits=(-127, 127)), 0),
        (QScheme(bits=4, signed=False), 8),
        (QScheme(bits=16, signed=False), 32768),
        (QScheme(signed=False, limits=(0, 127)), 64),
    ],
)
def test_middle(scheme, expected):
    assert middle(scheme) == expected


KINDS = ({}, {"symmetric": True}, {"float_qparams": True})


@pytest.mark.parametrize(
    ("scheme", "shape", "made"),
    [
        *((QScheme(**words), (), (1,)) for words in KINDS[:2]),
        *((QScheme(axis=0, **words), (3,), (3,)) for words in KINDS),
        *((QScheme(axis=0, group_size=4, **words), (3, 2), (3, 2)) for words in KINDS),
    ],
    ids=str,
)
def test_shapes_and_dtypes(scheme, shape, made):
    qparams = choose_qparams(-torch.ones(shape, dtype=torch.float64), torch.ones(shape).double(), scheme)
    assert qparams.scale.shape == qparams.zero_point.shape == made
    assert qparams.scale.dtype == torch.float32
    assert qparams.zero_point.dtype == (torch.float32 if scheme.float_qparams else torch.int32)


def test_float_qparams_do_not_widen_the_range():
    scheme = QScheme(signed=False, axis=0, float_qparams=True)
    qparams = choose_qparams(torch.tensor([1.0, 2.0, 0.0]), torch.tensor([2.0, 2.0, 0.0]), scheme)
    assert torch.equal(qparams.scale, torch.tensor([1 / 255, 1.0, 1.0]))
    assert torch.equal(qparams.zero_point, -torch.tensor([1.0, 2.0, 0.0]) / qparams.scale)


def test_range_wider_than_the_largest_float_stays_finite():
    largest = torch.finfo(torch.float32).max
    qparams = choose_qparams(torch.tensor(-largest), torch.tensor(largest), QScheme(signed=False))
    assert qparams.scale.item() == pytest.approx(2 * largest / 255, rel=SCALE_ROUNDING)
    assert qparams.zero_point.item() in (127, 128)


def test_eps_is_the_smallest_scale():
    for eps in (2.0**-8, torch.tensor([2.0**-8])):
        for scheme in (QScheme(), QScheme(symmetric=True)):
            assert choose_qparams(torch.tensor(0.0), torch.tensor(2.0**-10), scheme, eps).scale.item() == 2.0**-8


def test_unusable_ranges_are_named():
    with pytest.raises(CalibrationError) as caught:
        choose_qparams(torch.tensor([0.0, -1.0, 0.0]), torch.tensor([1.0, math.inf, 1.0]), QScheme(axis=0))
    assert str(caught.value) == (
        "the observed range of channel 1 is not finite\n"
        "  got:      [-1, inf]\n"
        "  hint:     the calibration data, or a layer before this tensor, overflows"
    )
    with pytest.raises(CalibrationError, match=r"^the observed range is not finite\n  got:      .nan, 1."):
        choose_qparams(torch.tensor(math.nan), torch.tensor(1.0), QScheme())
    with pytest.raises(CalibrationError) as caught:
        choose_qparams(torch.tensor(math.inf), torch.tensor(-math.inf), QScheme())
    assert str(caught.value) == (
        "no finite value was observed\n"
        "  hint:     run calibration first; if it did run, this tensor was empty, or NaN and infinite throughout"
    )
    low, high = torch.tensor([[0.0, 0.0], [math.inf, 0.0]]), torch.tensor([[1.0, 1.0], [-math.inf, 1.0]])
    with pytest.raises(CalibrationError, match=r"^no finite value was observed of channel 1, group 0\n"):
        choose_qparams(low, high, QScheme(axis=0, group_size=2))


EPS = 2.0**-12


@pytest.mark.parametrize("kind", [MinMaxObserver, HistogramObserver])
def test_the_steps_that_are_left_are_counted(kind: type) -> None:
    observer = kind(eps=EPS)
    observer(torch.tensor([-3 * EPS, 5 * EPS]))
    found = below_smallest_scale(observer)
    assert found is not None
    assert found.text == ("-0.000732 to 0.00122 is 8.0 of 255 steps: the observer's eps= keeps scales above 0.000244")
    assert found.unused == pytest.approx(255 / 8)


def test_of_channels_the_worst_is_named() -> None:
    observer = PerChannelMinMaxObserver(dtype=torch.int8, qscheme="per_channel_symmetric", eps=EPS)
    observer(torch.tensor([[1.0, -1.0], [4 * EPS, 0.0], [0.0, 0.0], [0.0, 2 * EPS]]))
    found = below_smallest_scale(observer)
    assert found is not None
    assert found.text.startswith("channel 3: 0 to 0.000488 is 4.0 of 255 steps")


@pytest.mark.parametrize("values", [[0.0, 0.0], [0.0, 64 * EPS], [-1.0, 1.0]])
def test_zeros_and_what_has_steps_enough_lose_nothing(values: list[float]) -> None:
    observer = MinMaxObserver(eps=EPS)
    observer(torch.tensor(values))
    assert below_smallest_scale(observer) is None


def test_where_nothing_is_known_nothing_is_said() -> None:
    for observer in (MinMaxObserver(), PerChannelMinMaxObserver(), PlaceholderObserver()):
        assert below_smallest_scale(observer) is None
