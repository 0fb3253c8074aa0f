"""The float model whose operators round: on grids of 8 bits, with the gradients of float, and itself unchanged."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.fuzz.compare import decibels, power
from tests.fuzz.rounding import COARSEST, STEPS, Rounding, rounded, rounding
from tests.fuzz.source import draw, seeded

X = draw(1, 4, 6, 16)


def step_of(values: torch.Tensor) -> float:
    """The finest grid that some values lie on, of those on which zero lies."""
    return float(values.unique().diff().min())


def test_results_lie_on_a_grid_of_their_own():
    with Rounding(0):
        y, z = X * 1.7, X * 0.01
    for values, exact in ((y, X * 1.7), (z, X * 0.01)):
        assert len(values.unique()) <= STEPS * COARSEST + 1
        assert values.abs().gt(0).any()
        step = (exact.max() - exact.min()) / STEPS
        assert 0 < (values - exact).abs().max() <= 0.51 * COARSEST * step
        assert torch.allclose(values / step_of(values), (values / step_of(values)).round(), atol=1e-3)


def test_equal_values_round_alike_and_zero_stays():
    with Rounding(0):
        y = F.pad(X[:, :, :1].expand(4, 6, 16), (0, 4)) + 0.0
    assert torch.equal(y[..., :1].expand(4, 6, 16), y[..., :16])
    assert not y[..., 16:].any()


def test_what_moves_or_chooses_values_rounds_nothing():
    moves = (F.relu, lambda x: x.flip(1), lambda x: F.max_pool1d(x, 2), lambda x: x.transpose(1, 2).clone())
    with Rounding(0):
        results = [move(X) for move in moves]
    for result in results:
        assert torch.isin(result[result != 0], X).all()


def test_what_is_divided_by_does_not_become_zero():
    """Rows a thousandth as large as others."""

    class Norms(nn.Module):
        def forward(self, x):
            return F.normalize(x, dim=-1), x / (x.pow(2).sum(-1, keepdim=True).sqrt() + 1e-5)

    x = X * torch.tensor([1.0, 1.0, 0.0, 1e-5, 1.0, 1.0])[:, None]
    for result in rounded(Norms(), (x,), 0):
        assert result.isfinite().all()
        assert (result[:, :2].norm(dim=-1) - 1).abs().max() < 0.05


def test_each_seed_has_other_grids():
    results = [rounded(nn.Tanh(), (X,), seed) for seed in (0, 0, 1)]
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_gradients_pass_straight_through():
    layer = seeded(2, nn.Linear(16, 8))
    exact = layer(X).sum()
    exact.backward()
    wanted = layer.bias.grad.clone(), layer.weight.grad.clone()
    layer.zero_grad()
    with rounding(layer, 3):
        layer(X).sum().backward()
    assert torch.allclose(layer.bias.grad, wanted[0], rtol=0.02)
    assert torch.allclose(layer.weight.grad, wanted[1], rtol=0.02, atol=0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv1d(6, 8, 3),
        lambda: nn.LayerNorm(16),
        lambda: nn.TransformerEncoderLayer(16, 2, 8, batch_first=True),
        lambda: nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4)),
    ],
)
def test_a_model_keeps_about_as_much_as_in_8_bits_and_is_unchanged(make):
    model = seeded(4, make()).eval()
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        exact = model(X)
    noise = power(rounded(model, (X,), 5) - exact)
    assert 20 < decibels(power(exact), noise) < 55
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_mask_of_minus_infinity_stays():
    class Masked(nn.Module):
        def forward(self, q):
            return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    result = rounded(Masked(), (X,), 0)
    assert result.isfinite().all()
    assert (result[:, 0] - X[:, 0]).abs().max() < 0.05


def test_a_range_spans_what_was_seen_in_calibration():
    far = X.clone()
    far[0, 0, 0] = 1000.0
    near, coarse = (power(rounded(nn.Tanh(), (X,), 0, seen) - X.tanh()) for seen in ([(X,)], [(X,), (far,)]))
    assert near == power(rounded(nn.Tanh(), (X,), 0) - X.tanh())
    assert coarse > 100 * near


def test_a_softmax_is_rounded_to_the_steps_of_its_fixed_range():
    flat = torch.zeros(1, 64) + torch.arange(64) / 64
    fixed, seen = torch.softmax(flat, 1), torch.sigmoid(flat) / 64
    coarse = (rounded(nn.Softmax(1), (flat,), 0) - fixed).abs().max()
    assert coarse > 0.3 / 255 > 4 * seen.max() / 255


def test_what_rounds_to_zero_keeps_the_gradient_of_a_relu():
    layer = nn.Sequential(nn.BatchNorm1d(1), nn.ReLU()).eval()
    x = torch.tensor([[1000.0], [1.0], [-1.0], [-1000.0]])
    with rounding(layer, 0):
        result = layer(x)
    result.sum().backward()
    assert result[1].item() < 1e-30
    assert layer[0].bias.grad.item() == 2
