"""Exact arithmetic against torch in float64, which holds these numbers too."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scripts.conformance_cases.exact import (
    Array,
    averaged,
    convolved,
    filled,
    finished,
    maximum,
    multiplied,
    pattern,
    quantized,
    real,
    spelled,
    transposed,
)

HALF = Fraction(1, 2)


def tensor(array: Array) -> Tensor:
    return torch.tensor([float(value) for value in array.data], dtype=torch.float64).reshape(array.shape)


@pytest.mark.parametrize(
    ("x", "expected"),
    [(HALF, 7), (3 * HALF, 9), (-HALF, 7), (-3 * HALF, 5), (1000, 255), (-1000, 0), (math.inf, 255), (-math.inf, 0)],
)
def test_rounding_is_half_to_even_and_comes_before_the_zero_point(x, expected):
    assert quantized(x, Fraction(1), 7, (0, 255)) == expected


def test_nan_is_the_smallest_integer():
    assert quantized(math.nan, Fraction(1), 7, (-8, 7)) == -8


GEOMETRIES = [
    {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1},
    {"stride": [2, 1], "padding": [1, 2], "dilation": [1, 2], "groups": 2},
    {"stride": [1, 2], "padding": [2, 0], "dilation": [2, 1], "groups": 4},
]


@pytest.mark.parametrize("at", GEOMETRIES)
def test_convolutions(at):
    x, weight, bias = pattern([2, 4, 6, 5], -9, 9), pattern([4, 4 // at["groups"], 3, 2], -5, 5), [HALF, 0, 3, -2]
    expected = F.conv2d(tensor(x), tensor(weight), torch.tensor([0.5, 0, 3, -2]).double(), **at)
    assert torch.equal(tensor(convolved(x, weight, bias, at)), expected)


@pytest.mark.parametrize("more", [[0, 0], [1, 1]])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transposed_convolutions(groups, more):
    at = {"stride": [2, 3], "padding": [1, 0], "output_padding": more, "groups": groups}
    x, weight = pattern([2, 4, 3, 4], -9, 9), pattern([4, 2, 3, 2], -5, 5)
    bias = list(range(2 * groups))
    expected = F.conv_transpose2d(tensor(x), tensor(weight), torch.tensor(bias).double(), **at)
    assert torch.equal(tensor(transposed(x, weight, bias, at)), expected)


@pytest.mark.parametrize("count_include_pad", [True, False])
def test_pools(count_include_pad):
    at = {"kernel_size": [2, 4], "stride": [2, 1], "padding": [1, 2], "count_include_pad": count_include_pad}
    x = pattern([1, 2, 5, 6], -9, 9)
    expected = F.avg_pool2d(tensor(x), [2, 4], [2, 1], [1, 2], False, count_include_pad)
    found = tensor(averaged(x.map(Fraction), at))
    assert torch.allclose(found, expected, rtol=1e-12)  # sixths are no floats
    assert torch.equal(tensor(maximum(x, at)), F.max_pool2d(tensor(x), [2, 4], [2, 1], [1, 2]))


def test_products():
    a, b = pattern([2, 3, 4], -9, 9), pattern([2, 4, 5], -5, 5)
    assert torch.equal(tensor(multiplied(a, b)), tensor(a) @ tensor(b))


def test_what_is_stored_stands_for_real_numbers_again():
    q = pattern([10], 0, 255)
    assert finished(real(q, (HALF, 9)), (HALF, 9), "uint8", (None, None)).data == q.data
    assert min(finished(real(q, (HALF, 90)), (HALF, 90), "uint8", (0, 6)).data) == 90
    assert max(finished(real(q, (HALF, 90)), (HALF, 90), "uint8", (0, 6)).data) == 102


def test_json_holds_every_number_exactly():
    assert spelled(Array([2], [Fraction(1, 2**20), math.nan])) == {"shape": (2,), "data": [2.0**-20, "nan"]}
    assert spelled(filled([4, 5], 7)) == {"shape": (4, 5), "fill": 7}
    with pytest.raises(AssertionError):
        spelled(Fraction(1, 3))
