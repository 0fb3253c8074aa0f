"""Dropouts as functions follow the mode of their module."""

from __future__ import annotations

import pickle

import torch
from torch.nn import functional as F

from fxquant.nn.regularizer import Regularizer


def test_drops_while_training_only():
    module = Regularizer(F.dropout, {"p": 0.5})
    x = torch.ones(1000)
    torch.manual_seed(0)
    expected = F.dropout(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(module(x), expected)
    assert torch.equal(module.eval()(x), x)


def test_pickles_and_says_what_it_calls():
    module = pickle.loads(pickle.dumps(Regularizer(F.dropout2d, {"p": 0.25})))
    assert module.function is F.dropout2d
    assert repr(module) == "Regularizer(dropout2d, p=0.25)"
