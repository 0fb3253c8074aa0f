"""``fxquant::histogram``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.kernels import histogram
from fxquant.kernels.fake_quantize.histogram import merge_histograms, reference, window_of

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
LARGEST = torch.finfo(torch.float32).max
SMALLEST = 2.0**-149


def empty(bins: int = 64, channels: int | None = None, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    shape = () if channels is None else (channels,)
    counts = torch.zeros(*shape, bins, dtype=torch.int64, device=device)
    return counts, torch.full(shape, math.inf, device=device), torch.full(shape, -math.inf, device=device)


def assert_equal(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_native_is_the_reference(
    device: str, source: torch.dtype, axis: int | None, view: Callable[[Tensor], Tensor]
) -> None:
    generator = torch.Generator().manual_seed(1)
    ours = theirs = None
    for factor in (0.0, 1e-3, 1.0, -0.5, 3e4):
        x = torch.randn(3, 5, 17, 9, generator=generator) * factor + factor
        x.view(-1)[:4] = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
        x = view(x.to(source).to(device))
        ours = ours or empty(64, None if axis is None else x.shape[axis], device)
        theirs = theirs or ours
        actual, expected = histogram(x, *ours, axis), reference(x, *theirs, axis)
        assert_equal(actual, expected)
        assert int(actual[0].sum() - ours[0].sum() + actual[3]) == x.numel()
        ours, theirs = actual[:3], expected[:3]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 2047, 2048, 2049, 4103, 300_001])
def test_parts_and_tasks_of_any_length(device: str, count: int) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count)).to(device)
    assert_equal(histogram(x, *empty(2048, device=device)), reference(x, *empty(2048, device=device)))
    rows = x.view(1, -1).expand(3, -1) if count else x.view(3, 0)
    assert_equal(histogram(rows, *empty(16, 3, device), 0), reference(rows, *empty(16, 3, device), 0))


def test_many_equal_values(device: str) -> None:
    """More than the narrow counters of one bin hold; then others, for which the bins move."""
    x = torch.full((1_100_003,), 3.0, device=device)
    state = histogram(x, *empty(device=device))[:3]
    assert state[0].max().item() == x.numel()
    state = histogram(-1e6 * torch.ones(5, device=device), *state)[:3]
    assert state[0].sum().item() == x.numel() + 5
    assert state[0].max().item() == x.numel()


def by_hand(values: list[float], bins: int) -> tuple[int, int, dict[int, int]]:
    """Exponent, first index and counts, in exact arithmetic, by trying exponents one after the other."""
    low, high = min([*values, 0.0]), max([*values, 0.0])

    def index(x: float, exponent: int) -> int:
        numerator, denominator = abs(x).as_integer_ratio()
        shift = 2 ** max(exponent, 0), 2 ** max(-exponent, 0)
        whole = numerator * shift[1] // (denominator * shift[0])
        return -1 - whole if x < 0 else whole

    exponent = -126
    while index(high, exponent) - (first := index(low, exponent)) + 1 > bins:
        exponent += 1
    counts: dict[int, int] = {}
    for value in values:
        place = index(value, exponent) - first
        counts[place] = counts.get(place, 0) + 1
    return exponent, first, counts


finite = st.one_of(
    st.floats(-LARGEST, LARGEST, width=32),
    st.integers(-4, 4).map(float),
    st.sampled_from([LARGEST, -LARGEST, SMALLEST, -SMALLEST, 0.0, -0.0]),
)


@settings(max_examples=300, deadline=None)
@given(batches=st.lists(st.lists(finite, min_size=1, max_size=9), min_size=1, max_size=4), bins=st.integers(16, 70))
def test_any_order_and_any_batches_give_what_exact_arithmetic_gives(batches: list[list[float]], bins: int) -> None:
    every = [value for batch in batches for value in batch]
    exponent, first, expected = by_hand(every, bins)
    state = whole = empty(bins)
    for batch in batches:
        state = histogram(torch.tensor(batch, dtype=torch.float32), *state)[:3]
    whole = histogram(torch.tensor(every[::-1], dtype=torch.float32), *whole)[:3]
    assert_equal(state, whole)
    counts, low, high = state
    window = window_of(low, high, bins)
    assert (window.exponent.item(), window.first.item()) == (exponent, first)
    assert window.width.item() == 2.0**exponent
    assert {place: count for place, count in enumerate(counts.tolist()) if count} == expected
    assert (low.item(), high.item()) == (min(every), max(every))


@settings(max_examples=100, deadline=None)
@given(one=st.lists(finite, max_size=9), other=st.lists(finite, max_size=9))
def test_merging_is_seeing_both(one: list[float], other: list[float]) -> None:
    first = histogram(torch.tensor([one], dtype=torch.float32), *empty(32, 1), 0)[:3]
    second = histogram(torch.tensor([other], dtype=torch.float32), *empty(32, 1), 0)[:3]
    both = histogram(torch.tensor([one + other], dtype=torch.float32), *empty(32, 1), 0)[:3]
    assert_equal(merge_histograms(*first, *second), both)


def test_doubles_that_are_no_floats_are_left_out(device: str) -> None:
    x = torch.tensor([1e300, -1e300, 1e-300, 1.0], dtype=torch.float64, device=device)
    counts, low, high, nonfinite = histogram(x, *empty(device=device))
    assert (counts.sum().item(), low.item(), high.item(), nonfinite.item()) == (2, 0.0, 1.0, 2)


def test_a_state_that_contradicts_itself_does_no_harm(device: str) -> None:
    """As a file might hold it: counts far outside the range."""
    counts, low, high = empty(device=device)
    for bounds in ((low + 1, high), (low * 0 + 1, high * 0 - 1), (low * math.nan, high), (-low, -high)):
        result = histogram(torch.ones(3, device=device), counts + 1, *bounds)
        assert result[0].sum().item() == 64 + 3


def test_arguments_are_not_written_to(device: str) -> None:
    state = empty(device=device)
    x = torch.randn(50, device=device)
    before = [each.clone() for each in (x, *state)]
    histogram(x, *state)
    assert all(map(torch.equal, before, (x, *state)))


ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"x": torch.zeros(2, 3).int()}, "x has the wrong dtype", "torch.int32", "float32, float64, float16 or bfloat16"),
    ({"counts": torch.zeros(64)}, "counts has the wrong dtype", "torch.float32", "int64"),
    ({"low": torch.zeros((), dtype=torch.float64)}, "low has the wrong dtype", "torch.float64", "float32"),
    ({"counts": torch.zeros(15, dtype=torch.int64)}, "counts has the wrong number of bins", "15", "16 to 65536"),
    ({"axis": 2}, "axis is out of range", "2", "a dimension of the tensor, which has 2"),
    ({"axis": 1}, "counts has the wrong shape", "[64]", "[3, 64]"),
    ({"high": torch.zeros(1)}, "high has the wrong shape", "[1]", "[]"),
]


@pytest.mark.parametrize(("changed", "what", "got", "expected"), ERRORS)
def test_errors(
    changed: dict[str, Any], what: str, got: str, expected: str, assert_message: Callable[..., None]
) -> None:
    counts, low, high = empty()
    arguments: dict[str, Any] = {"x": torch.zeros(2, 3), "counts": counts, "low": low, "high": high, **changed}
    for function in (histogram, reference):
        with pytest.raises(RuntimeError) as error:
            function(**arguments)
        assert_message(error.value, f"fxquant::histogram: {what}", got, expected)


@pytest.mark.parametrize("axis", [None, 1])
def test_opcheck(axis: int | None) -> None:
    arguments = (torch.randn(2, 3, 4), *empty(16, None if axis is None else 3), axis)
    torch.library.opcheck(torch.ops.fxquant.histogram.default, arguments)


def test_meta_tensors_give_shapes() -> None:
    counts, low, high, nonfinite = histogram(torch.empty(2, 3, device="meta"), *empty(16, 3, "meta"), 1)
    assert (counts.shape, low.shape, high.shape, nonfinite.shape) == ((3, 16), (3,), (3,), ())
