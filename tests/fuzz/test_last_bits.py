"""Operators that give other last bits show how far a result hangs on them."""

from __future__ import annotations

import torch
from torch import nn

from tests.fuzz.last_bits import with_other_last_bits
from tests.fuzz.source import draw, seeded

X = draw(1, 6, 16)


def share(model: nn.Module, seed: int = 0) -> float:
    """The largest change of a result, as a share of the largest value."""
    with torch.no_grad():
        exact = model(X)
    return float((with_other_last_bits(model, (X,), seed) - exact).abs().max() / exact.abs().max())


def test_one_operator_changes_by_a_last_bit():
    assert 0 < share(nn.Tanh()) <= 2**-22


def test_a_steep_operator_makes_the_last_bits_before_it_large():
    class Steep(nn.Module):
        def forward(self, x):
            return torch.sin(1000 * (x + 1))

    assert share(Steep()) > 100 * share(nn.Tanh())


def test_views_and_the_model_stay_as_they_are():
    class Moves(nn.Module):
        def forward(self, x):
            return x.transpose(0, 1)[:, 1:]

    layer = seeded(2, nn.Linear(16, 8))
    before = layer.weight.clone()
    assert share(Moves()) == 0
    assert share(layer) > 0
    assert torch.equal(layer.weight, before)


def test_each_seed_draws_other_bits():
    layer = seeded(3, nn.Linear(16, 8))
    one, two, three = (with_other_last_bits(layer, (X,), seed) for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
