"""Where the values of observers end, against sorting all of them."""

from __future__ import annotations

import pytest
import torch

import fxquant as fxq
from fxquant.calibration.observed_range import SHARE, observed_range_of


@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
def test_of_a_histogram_a_ten_thousandth_lies_beyond_each_end(shift):
    torch.manual_seed(0)
    x = torch.randn(50_000) + shift
    observer = fxq.HistogramObserver()
    observer(x)
    ((low, high),) = observed_range_of([observer]).tolist()
    width = float(x.max().clamp(min=0) - x.min().clamp(max=0)) / 1024  # of a bin, at most
    ordered = x.sort().values
    beyond = int(len(x) * SHARE)
    assert float(ordered[beyond]) - width <= low <= float(ordered[beyond])
    assert float(ordered[-1 - beyond]) <= high <= float(ordered[-1 - beyond]) + width


def test_an_outlier_among_many_values_is_left_out():
    observer = fxq.HistogramObserver()
    observer(torch.rand(100_000))
    observer(torch.tensor([1000.0]))
    assert 1 <= observed_range_of([observer])[0, 1] <= 2


def test_of_others_it_is_the_smallest_and_the_largest_value():
    whole, channels = fxq.MinMaxObserver(), fxq.PerChannelMinMaxObserver(ch_axis=1)
    x = torch.tensor([[-1.0, 2.0], [3.0, -5.0]])
    for observer in (whole, channels):
        observer(x)
    assert observed_range_of([whole, channels]).tolist() == [[-5, 3], [-5, 3]]


def test_what_has_seen_nothing_or_keeps_no_range_ends_nowhere():
    nowhere = [torch.inf, -torch.inf]
    unseen = (fxq.HistogramObserver(), fxq.MinMaxObserver(), fxq.PerChannelMinMaxObserver(), torch.nn.Identity())
    assert observed_range_of(unseen).tolist() == [nowhere] * 4
    assert observed_range_of([]).shape == (0, 2)


def test_histograms_of_different_sizes_are_told_apart():
    observers = [fxq.HistogramObserver(bins=bins) for bins in (64, 2048, 64)]
    for index, observer in enumerate(observers):
        observer(torch.tensor([0.0, index + 1.0]))
    assert observed_range_of(observers)[:, 1].tolist() == [1, 2, 3]
