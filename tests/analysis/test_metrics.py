from __future__ import annotations

import math

import pytest
import torch

from fxquant.analysis.metrics import Average, SignalToNoise
from fxquant.noise import sqnr


def test_signal_to_noise_of_all_tensors_of_all_batches() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 3), torch.randn(6, 3)
    score = SignalToNoise()
    for a, b in zip(x.split(2), y.split(2), strict=True):
        score.add({"a": b[:1], "rest": [b[1:], torch.tensor(3)]}, {"a": a[:1], "rest": [a[1:], torch.tensor(4)]})
    assert score.batches == 3
    assert score.value == pytest.approx(sqnr(x, y))
    assert score.cost(math.inf) == pytest.approx(10 ** (-sqnr(x, y) / 10))


def test_without_noise_nothing_is_lost_and_without_signal_all() -> None:
    score = SignalToNoise()
    score.add(torch.zeros(2), torch.zeros(2))
    assert (score.value, score.cost(math.inf)) == (math.inf, 0.0)
    score.add(torch.ones(2), torch.zeros(2))
    assert (score.value, score.cost(math.inf)) == (-math.inf, math.inf)
    broken = SignalToNoise()
    broken.add(torch.full((2,), math.nan), torch.ones(2))
    assert (broken.value, broken.cost(math.inf)) == (-math.inf, math.inf)


def test_an_average_is_weighted_by_the_size_of_batches() -> None:
    score = Average(lambda output, expected: (output == expected).float().mean(), higher_is_better=True)
    score.add(torch.tensor([1, 1, 1]), torch.tensor([1, 1, 1]))
    score.add(torch.tensor([1]), torch.tensor([0]))
    assert score.value == 0.75
    assert score.cost(1.0) == 0.25
    loss = Average(lambda output, expected: 3.0, higher_is_better=False)
    assert math.isnan(loss.value)
    loss.add(torch.ones(2), None)
    assert loss.cost(1.0) == 2.0
