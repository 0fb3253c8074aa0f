"""Ranges against batches: a table that stays small, and what it says of settling."""

from __future__ import annotations

import copy

import pytest
import torch

import fxquant as fxq
from fxquant.calibration.range_history import FEWEST_BATCHES, POINTS, SHARE, RangeHistory, observed_range_of


def history_of(tops: list[float]) -> tuple[RangeHistory, fxq.MinMaxObserver]:
    """One observer, whose batches reach from 0 to each of ``tops``."""
    history, observer = RangeHistory(["x"]), fxq.MinMaxObserver()
    for top in tops:
        observer(torch.tensor([0.0, top]))
        history.update([observer])
    return history, observer


def test_a_range_that_stays_has_settled_after_the_first_batch():
    history, observer = history_of([1.0] * FEWEST_BATCHES)
    assert history.stable_after([observer]).tolist() == [1]
    assert history.is_stable([observer]).tolist() == [True]


def test_fewer_batches_say_nothing():
    history, observer = history_of([1.0] * (FEWEST_BATCHES - 1))
    assert history.is_stable([observer]).tolist() == [False]


@pytest.mark.parametrize(("at", "settled"), [(7, True), (8, True), (9, False), (16, False)])
def test_what_moves_in_the_second_half_has_not_settled(at, settled):
    history, observer = history_of([1.0 if batch < at else 2.0 for batch in range(1, 17)])
    assert history.stable_after([observer]).tolist() == [at]
    assert history.is_stable([observer]).tolist() == [settled]


def test_small_moves_do_not_count():
    history, observer = history_of([1.0] * 15 + [1.04])
    assert history.is_stable([observer]).tolist() == [True]


def test_what_was_never_seen_is_not_known():
    history = RangeHistory(["x"])
    unseen = fxq.MinMaxObserver()
    for _ in range(FEWEST_BATCHES):
        history.update([unseen])
    assert history.stable_after([unseen]).tolist() == [0]
    assert history.is_stable([unseen]).tolist() == [False]


def test_the_table_never_grows():
    history, observer = history_of([1.0])
    size = sum(buffer.numel() for buffer in history.buffers())
    for batch in range(2, 1001):
        observer(torch.tensor([0.0, float(batch)]))
        history.update([observer])
    assert sum(buffer.numel() for buffer in history.buffers()) == size
    at, ends = history.table([observer])
    assert POINTS // 2 <= len(at) <= POINTS + 1
    assert (int(at[-1]), float(ends[-1, 0, 1])) == (1000, 1000.0)
    assert at.tolist() == ends[:, 0, 1].tolist()  # each row is of its batch
    assert history.stable_after([observer]) > 900


def test_the_batch_that_brought_nan_is_remembered():
    history, observer = RangeHistory(["x", "y"]), fxq.MinMaxObserver()
    other = fxq.HistogramObserver()
    for batch in range(6):
        observer(torch.tensor([1.0, torch.nan if batch in (3, 5) else 0.0]))
        other(torch.tensor([1.0]))
        history.update([observer, other])
    assert history.first_nonfinite.tolist() == [3, -1]


def test_a_state_goes_on_where_it_was():
    history, observer = history_of([1.0, 2.0, 3.0])
    twin = RangeHistory(["x"])
    twin.load_state_dict(history.state_dict())
    observer(torch.tensor([4.0]))
    history.update([observer])
    twin.update([observer])
    for name, value in history.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name


def test_parts_are_pooled_and_count_once():
    history, observer = history_of([1.0, 2.0])
    other, _ = history_of([5.0, 6.0, 7.0])
    other.first_nonfinite.fill_(1)
    states = [copy.deepcopy(each.state_dict()) for each in (history, other)]
    for each in (history, other):
        each.pool(states)
    for name, value in history.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert history.batches == 5
    assert history.at[:4].tolist() == [2, 4, 5, 0]
    assert history.ends[:3, 0].tolist() == [[0, 5], [0, 6], [0, 7]]
    assert history.first_nonfinite.tolist() == [1]
    again = [copy.deepcopy(each.state_dict()) for each in (history, other)]
    history.pool(again)
    assert history.batches == 5
    assert history.at[:4].tolist() == [2, 4, 5, 0]
    observer(torch.tensor([9.0]))
    history.update([observer])
    states = [copy.deepcopy(each.state_dict()) for each in (history, other)]
    history.pool(states)
    assert history.batches == 6


def test_casting_and_moving_the_model_leave_it_alone():
    history, _ = history_of([1.0])
    assert history.half().ends.dtype == torch.float32
    assert history.to("meta").ends.device.type == "cpu"


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


def test_of_one_without_extremes_it_is_the_range_of_its_qparams():
    observer = fxq.FixedQParamsObserver(scale=0.5, zero_point=3, dtype=torch.uint8)
    assert observed_range_of([fxq.MinMaxObserver(), observer])[1].tolist() == [-1.5, 126]


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
