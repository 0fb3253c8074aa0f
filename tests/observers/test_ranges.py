"""value_range against a loop over every value, for every layout, granularity and dtype."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxquant.errors import InputError
from fxquant.observers.ranges import in_memory_order, value_range
from fxquant.plan.spec import QScheme


def brute_force(x: torch.Tensor, scheme: QScheme) -> tuple[dict, dict, int]:
    """Extremes of the finite values by key (channel, group), and the count of the others."""
    low: dict[tuple[int, ...], float] = {}
    high: dict[tuple[int, ...], float] = {}
    nonfinite = 0
    axis = None if scheme.axis is None else scheme.axis % x.dim()
    for index in itertools.product(*map(range, x.shape)):
        value = x[index].float().item()
        key = () if axis is None else (index[axis],)
        if scheme.group_size is not None:
            key += (index[axis + 1] // scheme.group_size,)
        if math.isfinite(value):
            low[key], high[key] = min(low.get(key, math.inf), value), max(high.get(key, -math.inf), value)
        else:
            nonfinite += 1
    return low, high, nonfinite


def assert_right(x: torch.Tensor, scheme: QScheme) -> None:
    low, high, nonfinite = value_range(x, scheme)
    right_low, right_high, right_count = brute_force(x, scheme)
    assert nonfinite == right_count
    assert low.dtype == high.dtype == torch.float32
    axis = scheme.axis
    shape = () if axis is None else (x.shape[axis],)
    if scheme.group_size is not None:
        shape += (x.shape[axis % x.dim() + 1] // scheme.group_size,)
    assert low.shape == high.shape == shape
    for key in itertools.product(*map(range, shape)):
        assert low[key].item() == right_low.get(key, math.inf)
        assert high[key].item() == right_high.get(key, -math.inf)


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3),
    "sliced": lambda x: x[:, ::2, 1:, :-1],
    "expanded": lambda x: x[:, :1].expand(-1, 4, -1, -1),
    "flipped": lambda x: x.flip(2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [None, 0, 1, 3, -1, -4])
@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_layouts(layout, axis, bad):
    x = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0))
    if bad is not None:
        x[0, 0, 2, 1] = x[1, 2] = bad
    assert_right(LAYOUTS[layout](x), QScheme(axis=axis))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("axis", [None, 1])
def test_dtypes(dtype, axis):
    assert_right((torch.randn(3, 4, generator=torch.Generator().manual_seed(1)) * 7).to(dtype), QScheme(axis=axis))


def test_float64_beyond_float32_counts_as_infinite():
    low, high, nonfinite = value_range(torch.tensor([1e300, -2.0, 3.0], dtype=torch.float64), QScheme())
    assert (low.item(), high.item(), nonfinite) == (-2.0, 3.0, 1)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=12, max_size=12),
    scheme=st.sampled_from(
        [QScheme(), QScheme(axis=0), QScheme(axis=1), QScheme(axis=0, group_size=3), QScheme(axis=-2, group_size=2)]
    ),
)
def test_any_values(values, scheme):
    assert_right(torch.tensor(values, dtype=torch.float32).reshape(2, 6), scheme)


def test_one_dimension():
    assert_right(torch.tensor([3.0, math.nan, -1.0]), QScheme(axis=0))
    assert_right(torch.tensor(2.0).reshape(1), QScheme())
    assert [end.item() for end in value_range(torch.tensor(-2.0), QScheme())[:2]] == [-2.0, -2.0]


def test_memory_order_is_a_view_of_dense_tensors():
    x = torch.randn(2, 3, 4, 5)
    for dense in (x, x.contiguous(memory_format=torch.channels_last), x.permute(3, 1, 0, 2), x[1:]):
        flat = in_memory_order(dense)
        assert flat.shape == (dense.numel(),)
        assert flat.data_ptr() == dense.data_ptr()
    for gaps in (x[:, :1], x[..., ::2], x[:, :1].expand(-1, 3, -1, -1)):
        assert in_memory_order(gaps) is gaps


def test_wrong_dimensions_are_named():
    with pytest.raises(InputError) as caught:
        value_range(torch.randn(2, 3), QScheme(axis=2))
    assert str(caught.value) == (
        "the tensor has no such channel dimension\n  got:      axis 2, shape (2, 3)\n  expected: -2 <= axis < 2"
    )
    with pytest.raises(InputError) as caught:
        value_range(torch.randn(2, 5), QScheme(axis=0, group_size=2))
    assert str(caught.value) == (
        "the tensor does not divide into groups\n"
        "  got:      shape (2, 5)\n"
        "  expected: a multiple of group_size 2 in dimension 1, which follows axis 0"
    )
    with pytest.raises(InputError, match="does not divide into groups"):
        value_range(torch.randn(2, 4), QScheme(axis=-1, group_size=2))
