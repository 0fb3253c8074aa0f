from __future__ import annotations

import math

import pytest
import torch

from fxquant.measure.deviation import Deviation, DeviationSums
from fxquant.measure.noise import decibels, sqnr

CLOSE = 1e-6
"""Relative: sums of float32 squares in float64, in another order."""


def measured(reference: torch.Tensor, other: torch.Tensor, axis: int = 1, parts: int = 1) -> Deviation:
    sums = DeviationSums()
    for a, b in zip(reference.chunk(parts), other.chunk(parts), strict=True):
        sums.add(a, b, axis)
    return sums.result()


def test_all_of_it_against_its_definition() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 5, 3)
    y = x + 0.1 * torch.randn(8, 5, 3)
    found = measured(x, y)
    assert found.sqnr == pytest.approx(sqnr(x, y), rel=CLOSE)
    cosine = torch.nn.functional.cosine_similarity(x.flatten().double(), y.flatten().double(), dim=0)
    assert found.cosine == pytest.approx(cosine.item(), rel=CLOSE)
    assert found.largest == pytest.approx((x - y).abs().max().item(), rel=CLOSE)
    shares = (x - y).square().sum((0, 2)) / x.square().sum((0, 2))
    whole = (x - y).square().sum() / x.square().sum()
    assert found.lost == pytest.approx(max(shares.mean().item(), whole.item()), rel=1e-5)
    assert found.channel == shares.argmax().item()


def test_batches_add_up() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.randn(12, 4)
    once, parts = measured(x, y), measured(x, y, parts=4)
    assert parts.sqnr == pytest.approx(once.sqnr, rel=CLOSE)
    assert (parts.largest, parts.channel) == (once.largest, once.channel)


def test_a_large_channel_does_not_hide_that_the_others_are_lost() -> None:
    x = torch.ones(4, 8)
    x[:, 3] = 1000.0
    y = torch.zeros(4, 8)
    y[:, 3] = 1000.0
    found = measured(x, y)
    assert found.sqnr > 50
    assert found.lost == pytest.approx(7 / 8)


def test_as_many_channels_as_a_batch_has() -> None:
    sums = DeviationSums()
    sums.add(torch.ones(2, 3), torch.ones(2, 3), 1)
    sums.add(torch.ones(2, 5), torch.zeros(2, 5), 1)
    assert sums.signal.tolist() == [4, 4, 4, 2, 2]
    assert sums.result().lost == pytest.approx((3 * 0.5 + 2) / 5)


def test_what_is_not_finite_in_the_float_model_is_left_out() -> None:
    x, y = torch.tensor([[1.0, math.inf], [math.nan, 2.0]]), torch.tensor([[1.0, 3.0], [5.0, 2.0]])
    assert measured(x, y).sqnr == math.inf
    assert (measured(y, x).sqnr, measured(y, x).lost, measured(y, x).largest) == (-math.inf, 1.0, math.inf)


@pytest.mark.parametrize(("signal", "noise", "expected"), [(1, 0, math.inf), (0, 1, -math.inf), (100, 1, 20.0)])
def test_decibels(signal: float, noise: float, expected: float) -> None:
    assert decibels(signal, noise) == expected


def test_of_nothing_nothing_is_known() -> None:
    assert math.isnan(decibels(0, 0))
    assert math.isnan(measured(torch.zeros(2, 3), torch.zeros(2, 3)).sqnr)
    found = DeviationSums().result()
    assert math.isnan(found.sqnr)
    assert (found.lost, found.channel) == (0.0, 0)
    sums = DeviationSums()
    sums.add(torch.zeros(0, 3), torch.zeros(0, 3), 1)
    assert math.isnan(sums.result().sqnr)


def test_scalars_and_half_precision() -> None:
    assert measured_scalar(torch.tensor(2.0), torch.tensor(1.0)).largest == 1.0
    x = torch.full((4, 2), 300.0, dtype=torch.float16)
    assert measured(x, x + 1).sqnr == pytest.approx(20 * math.log10(300), rel=1e-3)


def measured_scalar(reference: torch.Tensor, other: torch.Tensor) -> Deviation:
    sums = DeviationSums()
    sums.add(reference, other, -1)
    return sums.result()
