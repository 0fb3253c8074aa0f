from __future__ import annotations

import math

import pytest
import torch

from fxquant.analysis.metrics import Average, SignalToNoise
from fxquant.errors import InputError
from fxquant.measure.noise import sqnr


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
    assert math.isnan(score.value)
    assert score.cost(math.inf) == 0.0
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


def test_where_the_float_model_is_not_finite_nothing_is_measured() -> None:
    score = SignalToNoise()
    score.add(torch.tensor([-math.inf, 1.0, 0.0]), torch.tensor([-math.inf, 1.0, math.nan]))
    assert (score.value, score.cost(math.inf)) == (math.inf, 0.0)
    score.add(torch.tensor([5.0, 1.0]), torch.tensor([math.inf, 2.0]))
    assert score.cost(math.inf) == pytest.approx(1 / 5)
    score.add(torch.tensor([math.inf]), torch.tensor([1.0]))
    assert score.cost(math.inf) == math.inf


def test_an_output_without_real_numbers_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        SignalToNoise().add({"classes": torch.tensor([1, 2])}, {"classes": torch.tensor([1, 3])})
    assert str(caught.value) == (
        "the model's output holds no float values, so there is no signal to noise of it\n"
        "  got:      {classes: int64[2]}\n"
        "  expected: a tensor of floats, alone or in a structure\n"
        "  hint:     give a metric, one that compares classes, say"
    )


@pytest.mark.parametrize("given", [None, torch.ones(2), "much"])
def test_a_metric_that_gives_no_number_is_refused(given: object) -> None:
    with pytest.raises(InputError, match="metric gave no number"):
        Average(lambda output, expected: given, higher_is_better=True).add(torch.ones(2), None)


def test_before_the_first_batch_nothing_is_known() -> None:
    assert math.isnan(SignalToNoise().value)
