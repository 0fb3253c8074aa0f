"""Weights that hooks and parametrizations compute: the copy holds plain ones, the user's module is as it was."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import fxquant as fxq
from fxquant.capture.parametrizations import bake_weights

X = torch.linspace(-1, 1, 24).reshape(4, 6)


def old(name: str) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and in many checkpoints
        return getattr(nn.utils, name)(nn.Linear(6, 6))


def pruned() -> nn.Module:
    layer = prune.l1_unstructured(nn.Linear(6, 6), "weight", 0.5)
    return prune.random_unstructured(prune.l1_unstructured(layer, "bias", 2), "weight", 0.5)


MAKERS = {
    "parametrized weight norm": lambda: parametrizations.weight_norm(nn.Linear(6, 6)),
    "parametrized spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(6, 6)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(6, 6)),
    "weight norm": lambda: old("weight_norm"),
    "spectral norm": lambda: old("spectral_norm"),
    "pruning twice": pruned,
}


@pytest.mark.parametrize("name", MAKERS)
def test_values_stay_and_nothing_else_does(name):
    torch.manual_seed(0)
    model = nn.Sequential(MAKERS[name]()).eval()
    with torch.no_grad():
        expected = model(X)
    keys, kind = set(model.state_dict()), type(model[0])
    baked = copy.deepcopy(model)
    bake_weights(baked)
    assert type(baked[0]) is nn.Linear
    assert set(baked.state_dict()) == {"0.weight", "0.bias"}
    assert all(isinstance(value, nn.Parameter) for value in (baked[0].weight, baked[0].bias))
    with torch.no_grad():
        assert torch.equal(baked(X), expected)
        assert torch.equal(pickle.loads(pickle.dumps(baked))(X), expected)
        assert torch.equal(model(X), expected)
    assert set(model.state_dict()) == keys
    assert type(model[0]) is kind


def test_other_hooks_stay():
    model = nn.Sequential(old("weight_norm"))
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    bake_weights(model)
    assert torch.equal(model(X), model[0].bias.expand(4, 6))


@pytest.mark.parametrize("name", MAKERS)
def test_products_are_summed_as_with_a_computed_weight(name):
    """Of an input that is not dense, torch sums them in another order if the weight might be given a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(MAKERS[name]()).eval()
    x = torch.randn(5, 6, 7).transpose(1, 2)
    with torch.no_grad():
        assert torch.equal(fxq.prepare(model, x).graph_module(x), model(x))
