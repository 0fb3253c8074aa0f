"""What a histogram says of clipped values and outliers."""

from __future__ import annotations

import pytest
import torch

import fxquant as fxq
from fxquant.calibration.clipping import clipping_of

CLOSE = 2e-4
"""Of all values: some of those in one bin, which are taken to be spread evenly there."""


@pytest.mark.parametrize("top", [0.5, 1.0, 2.5, 10.0])
@pytest.mark.parametrize("signed", [True, False])
def test_clipped_values_are_those_beyond_the_last_steps(top, signed):
    torch.manual_seed(0)
    x = torch.randn(100_000)
    observer = fxq.HistogramObserver()
    observer(x)
    scheme = fxq.QScheme(signed=signed, symmetric=True)
    zero_point = 0 if signed else 128
    qparams = fxq.QParams(scheme, torch.tensor([top / 127]), torch.tensor([zero_point], dtype=torch.int32))
    first = (scheme.quant_min - zero_point - 0.5) * top / 127
    last = (scheme.quant_max - zero_point + 0.5) * top / 127
    expected = float(((x < first) | (x > last)).double().mean())
    shares = clipping_of(observer, qparams)
    assert shares.values == x.numel()
    assert shares.clipped == pytest.approx(expected, abs=CLOSE)


def test_the_range_of_all_values_clips_none():
    observer = fxq.PercentileObserver(100.0)
    observer(torch.linspace(-1.0, 3.0, 10_000))
    assert clipping_of(observer, observer.qparams()).clipped == 0


def test_outliers_are_counted():
    observer = fxq.HistogramObserver()
    observer(torch.cat([torch.linspace(-1.0, 1.0, 99_990), torch.full((10,), 1000.0)]))
    shares = clipping_of(observer, observer.qparams())
    assert shares.outliers == pytest.approx(1e-4)
    assert shares.reach > 100


def test_evenly_spread_values_have_no_outliers():
    observer = fxq.HistogramObserver()
    observer(torch.linspace(-1.0, 1.0, 10_000))
    shares = clipping_of(observer, observer.qparams())
    assert (shares.outliers, shares.reach) == (0, pytest.approx(1.0, abs=0.01))


def test_channels_are_held_against_their_own_grids():
    observer = fxq.PercentileObserver(100.0, ch_axis=0, qscheme=torch.per_channel_affine)
    observer(torch.stack([torch.linspace(0, 1, 1000), torch.linspace(0, 100, 1000)]))
    shares = clipping_of(observer, observer.qparams())
    assert (shares.values, shares.clipped) == (2000, 0)


def test_observers_that_count_nothing_have_no_shares():
    observer = fxq.MinMaxObserver()
    observer(torch.ones(3))
    assert clipping_of(observer, observer.qparams()) is None
