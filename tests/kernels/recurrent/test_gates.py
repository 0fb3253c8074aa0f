"""The functions of gates are those of torch, and exact at their ends."""

from __future__ import annotations

import pytest
import torch

from fxquant.kernels.recurrent.gates import GRU, LSTM, RELU, TANH, advance, relu, sigmoid, tanh

CLOSE = 3e-7
"""Absolute difference from float64: a few roundings of float32 near 1."""
X = torch.cat([torch.linspace(-12, 12, 4001), torch.linspace(-1e-3, 1e-3, 401), torch.tensor([-200.0, -88.0, 88, 200])])


@pytest.mark.parametrize(("own", "exact"), [(sigmoid, torch.sigmoid), (tanh, torch.tanh), (relu, torch.relu)])
def test_functions_are_those_of_torch(own, exact):
    assert (own(X).double() - exact(X.double())).abs().max() < CLOSE


@pytest.mark.parametrize("own", [sigmoid, tanh, relu])
def test_nan_stays_and_infinities_are_the_ends(own):
    values = own(torch.tensor([torch.nan, -torch.inf, torch.inf, 0.0]))
    low, high, middle = {sigmoid: (0, 1, 0.5), tanh: (-1, 1, 0), relu: (0, torch.inf, 0)}[own]
    assert values[0].isnan()
    assert abs(float(values[1]) - low) < 1e-30
    assert values[2:].tolist() == [high, middle]


def test_tanh_is_odd_and_bounded():
    assert torch.equal(tanh(-X), -tanh(X))
    assert float(tanh(X).abs().max()) == 1


@pytest.mark.parametrize(
    ("mode", "layer"),
    [
        (LSTM, torch.nn.LSTMCell(3, 5)),
        (GRU, torch.nn.GRUCell(3, 5)),
        (TANH, torch.nn.RNNCell(3, 5)),
        (RELU, torch.nn.RNNCell(3, 5, nonlinearity="relu")),
    ],
    ids=["lstm", "gru", "tanh", "relu"],
)
def test_a_step_is_that_of_torch(mode, layer):
    x, hidden, cell = torch.randn(4, 3), torch.randn(4, 5), torch.randn(4, 5 if mode == LSTM else 0)
    products = [torch.nn.functional.linear(x, layer.weight_ih, layer.bias_ih)]
    products.append(torch.nn.functional.linear(hidden, layer.weight_hh, layer.bias_hh))
    now, next_cell = advance(mode, *products, hidden, cell)
    expected = layer(x, (hidden, cell)) if mode == LSTM else (layer(x, hidden), cell)
    assert torch.allclose(now, expected[0], atol=2e-6)
    assert torch.allclose(next_cell, expected[1], atol=2e-6)
