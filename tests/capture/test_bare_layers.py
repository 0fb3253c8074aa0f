"""Layers of torch.nn that are the whole model are called as one, where their own forward would lose them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import InputError, PlanError
from fxquant.measure.noise import sqnr

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(3, 2, 4, generator=GENERATOR)


def first_of(results):
    """Return the first tensor of nested results."""
    while isinstance(results, tuple):
        results = results[0]
    return results


@pytest.mark.parametrize("has_example", [True, False], ids=["example", "no example"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_layers_are_quantized(kind, has_example):
    torch.manual_seed(0)
    layer = kind(4, 6).eval()
    x = X[0] if kind.__name__.endswith("Cell") else X
    prepared = fxq.prepare(layer, x if has_example else None, fxq.default_dynamic_qconfig)
    assert [unit.pattern for unit in prepared.plan.units] == ["dynamic_recurrent"]
    converted = fxq.convert(prepared)
    with torch.no_grad():
        expected = layer(x)
        assert sqnr(first_of(expected), first_of(converted(x))) > 30
        with pytest.raises(InputError, match="the argument 'hx' was fixed"):
            converted(x, expected[1] if isinstance(expected, tuple) else expected)


def test_first_states_are_inputs_where_the_example_has_them():
    torch.manual_seed(0)
    layer, states = nn.LSTM(4, 6).eval(), (torch.ones(1, 2, 6), torch.ones(1, 2, 6))
    converted = fxq.convert(fxq.prepare(layer, (X, states), fxq.default_dynamic_qconfig))
    with torch.no_grad():
        assert sqnr(layer(X, states)[0], converted(X, states)[0]) > 30


def test_attention_is_taken_apart_with_example_inputs_and_says_so_without():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2).eval()
    prepared = fxq.prepare(layer, (X, X, X))
    prepared.observe(X, X, X)
    with torch.no_grad():
        assert sqnr(layer(X, X, X)[0], fxq.convert(prepared)(X, X, X)[0]) > 25
    assert "linear" in {unit.pattern for unit in prepared.plan.units}
    with pytest.raises(PlanError, match="only example inputs tell the shapes"):
        fxq.prepare(layer, None)


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(4), nn.InstanceNorm2d(4)], ids=["batch norm", "instance norm"])
def test_norms_say_why_they_stay_float(layer):
    with pytest.raises(PlanError, match="has no operator that can be quantized"):
        fxq.prepare(layer.eval(), None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2),
        lambda: nn.TransformerEncoderLayer(4, 2, 8),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)),
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 1),
    ],
    ids=["encoder", "layer", "inside", "decoder"],
)
def test_transformers_are_traced_without_example_inputs(make):
    torch.manual_seed(0)
    model = make().eval()
    inputs = (X, X) if isinstance(model, nn.TransformerDecoder) else (X,)
    prepared = fxq.prepare(model, None)
    assert torch.backends.mha.get_fastpath_enabled()
    reasons = {row.node: row.reason for row in prepared.coverage().rows if row.fate == "float"}
    assert any("only example inputs tell the shapes" in str(reason) for reason in reasons.values())
    assert {"linear_act", "linear"} <= {unit.pattern for unit in prepared.plan.units}
    for _ in range(2):
        prepared.observe(*inputs)
    with torch.no_grad():
        torch.testing.assert_close(prepared(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
        assert sqnr(model(*inputs), fxq.convert(prepared)(*inputs)) > 25
