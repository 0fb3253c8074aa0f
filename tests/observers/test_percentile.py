"""PercentileObserver: order statistics, to a bin."""

from __future__ import annotations

import math

import pytest
import torch

from fxquant.errors import SpecError
from fxquant.observers import PercentileObserver


def order_statistic(x: torch.Tensor, share: float) -> float:
    return float(x.sort().values[max(math.ceil(share * x.numel() - 1e-6), 1) - 1])


@pytest.mark.parametrize("percentile", [51.0, 90.0, 99.0, 99.9, 99.99, 100.0])
@pytest.mark.parametrize("factor", [1.0, -1.0, 1e-20])
def test_ends_are_within_a_bin_of_the_order_statistics(percentile, factor):
    torch.manual_seed(0)
    for x in (torch.randn(9973), torch.randn(5000).relu(), torch.rand(777) + 2, torch.randn(999).exp()):
        x = x * factor
        bin_width = 2 * max(x.max().item(), x.max().item() - x.min().item(), -x.min().item()) / 2048 * 2
        observer = PercentileObserver(percentile)
        observer(x)
        low, high = map(float, observer.chosen_range())
        assert abs(high - order_statistic(x, percentile / 100)) <= bin_width
        assert abs(low - order_statistic(x, 1 - percentile / 100)) <= bin_width
        symmetric = PercentileObserver(percentile, dtype=torch.int8, qscheme="per_tensor_symmetric")
        symmetric(x)
        low, high = map(float, symmetric.chosen_range())
        assert low == -high
        assert abs(high - order_statistic(x.abs(), percentile / 100)) <= bin_width


def test_one_outlier_is_clipped():
    torch.manual_seed(0)
    observer = PercentileObserver(99.9)
    observer(torch.cat([torch.randn(9999), torch.tensor([1000.0])]))
    assert 3 <= observer.chosen_range()[1].item() <= 5


@pytest.mark.parametrize("percentile", [50.0, 100.1, math.nan])
def test_percentile_is_checked(percentile):
    with pytest.raises(SpecError, match=r"percentile is out of range\n  got: .*\n  expected: above 50, at most 100"):
        PercentileObserver(percentile)
