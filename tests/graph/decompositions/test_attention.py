"""What of an attention call can be read, and the layers that it is given. Values: tests/passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.capture.tracing import trace
from fxquant.graph.decompositions.attention import (
    ADDED_KEYS,
    COMPUTED,
    TAKEN,
    UNKNOWN,
    AttentionCall,
    give_layers,
    read_call,
)

X = torch.rand(5, 3, 8)


class Net(nn.Module):
    def __init__(self, call, **options) -> None:
        super().__init__()
        self.attn, self.call = nn.MultiheadAttention(8, 2, **options), call

    def forward(self, x):
        return self.call(self.attn, x)


def read(model: nn.Module) -> AttentionCall | str:
    gm = trace(model.eval(), example_args=(X,))
    return read_call(next(node for node in gm.graph.nodes if node.target == "attn"))


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda attn, x: attn(x, x, x), True),
        (lambda attn, x: attn(x, x, value=x)[1], True),
        (lambda attn, x: attn(x, x, x)[0], False),
        (lambda attn, x: attn(x, x, x, need_weights=False), False),
        (lambda attn, x: attn(x, x, x, None, False), False),
    ],
)
def test_whether_anything_reads_the_weights(call, wanted):
    found = read(Net(call))
    assert found.wants_weights is wanted
    assert found.query is found.key is found.value


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_keys_of_its_own(option):
    assert read(Net(lambda attn, x: attn(x, x, x)[0], **{option: True})) == ADDED_KEYS


def test_an_attribute_that_a_layer_would_need():
    model = Net(lambda attn, x: attn(x, x, x)[0])
    model.attn.q_proj = "mine"
    assert read(model) == TAKEN.format("q_proj")


def test_what_is_computed_at_run_time():
    gm = trace(Net(lambda attn, x: attn(x, x, x)[0]).eval(), example_args=(X,))
    node = next(node for node in gm.graph.nodes if node.target == "attn")
    node.kwargs = {"need_weights": node.args[0]}
    assert read_call(node) == COMPUTED
    node.kwargs = {"attn_mask": 3}
    assert read_call(node) == UNKNOWN


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 4, "vdim": 6}])
def test_layers_hold_the_weights_of_the_module(options):
    attn = nn.MultiheadAttention(8, 2, dropout=0.25, **options).eval()
    give_layers(attn)
    layers = dict(attn.named_children())
    assert list(layers) == ["q_proj", "k_proj", "v_proj", "out_proj", "weights_dropout"]
    assert (layers["weights_dropout"].p, layers["weights_dropout"].training) == (0.25, False)
    separate = (attn.q_proj_weight, attn.k_proj_weight, attn.v_proj_weight)
    weights = attn.in_proj_weight.split(8) if attn.in_proj_weight is not None else separate
    for layer, weight in zip(layers.values(), weights, strict=False):
        assert torch.equal(layer.weight, weight)
        assert layer.weight.data_ptr() != weight.data_ptr()
        assert (layer.out_features, layer.in_features) == tuple(weight.shape)
        assert (layer.bias is None) == (attn.in_proj_bias is None)
