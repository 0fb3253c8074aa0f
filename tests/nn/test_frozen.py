"""Freezing the statistics of batch norms."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from fxquant.errors import FxQuantWarning
from fxquant.nn.frozen import FROZEN, freeze_bn_stats, update_bn_stats


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).train()


@pytest.fixture
def x():
    return torch.randn(8, 3, 4, 4) + 10


def test_frozen_statistics_stay_while_everything_else_trains(model, x):
    expected = copy.deepcopy(model).eval()(x)
    before = {name: value.clone() for name, value in model.named_buffers()}
    model.apply(freeze_bn_stats)
    model.train()
    y = model(x)
    y.square().mean().backward()
    assert torch.equal(y, expected)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_updating_undoes_freezing(model, x):
    twin = copy.deepcopy(model)
    model.apply(freeze_bn_stats).apply(update_bn_stats)
    assert type(model[1]) is nn.BatchNorm2d
    assert torch.equal(model(x), twin(x))
    assert torch.equal(model[1].running_mean, twin[1].running_mean)


def test_updating_what_is_not_frozen_changes_nothing(model):
    model.eval()
    model.apply(update_bn_stats)
    assert not model[1].training


@pytest.mark.parametrize("kind", list(FROZEN))
def test_every_kind_freezes_copies_and_pickles(kind):
    module = kind(4)
    freeze_bn_stats(module)
    for same in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(same) is FROZEN[kind]
        assert not same.train().training
    assert isinstance(module, kind)
    freeze_bn_stats(module)  # once more changes nothing
    assert type(module) is FROZEN[kind]


def test_a_derived_class_is_left_alone_with_a_warning():
    class Mine(nn.BatchNorm2d):
        pass

    model = nn.Sequential(nn.BatchNorm2d(3), Mine(3), nn.BatchNorm2d(3))
    with pytest.warns(FxQuantWarning, match="Mine"):
        model.apply(freeze_bn_stats)
    assert [module.training for module in model] == [False, True, False]
