"""Freezing the statistics of batch norms."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxquant.errors import FxQuantWarning
from fxquant.nn.training import AVERAGING, FROZEN, JoinedRange, Regularizer, freeze_bn_stats, update_bn_stats


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


def test_the_first_call_counts_whole_and_later_ones_a_little():
    found, x = JoinedRange(), torch.tensor([-1.0, 3.0])
    assert found.ends.isnan().all()
    assert found(x) is x
    assert found.ends.tolist() == [-1, 3]
    found(2 * x)
    torch.testing.assert_close(found.ends, torch.tensor([-1 - AVERAGING, 3 + 3 * AVERAGING]))


def test_what_is_not_finite_or_empty_changes_nothing():
    found = JoinedRange()
    for values in ([], [torch.nan, 1.0], [torch.inf, 0.0]):
        found(torch.tensor(values))
    assert found.ends.isnan().all()


def test_gradients_pass_and_numbers_stay_float32():
    found, x = JoinedRange().half(), torch.randn(3, requires_grad=True)
    found(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(3))
    assert found.ends.dtype == torch.float32


def test_several_processes_take_the_mean_of_those_that_saw_something():
    seen = [JoinedRange() for _ in range(3)]
    seen[0](torch.tensor([0.0, 2.0]))
    seen[2](torch.tensor([-4.0, 4.0]))
    seen[1].pool([each.state_dict() for each in seen])
    assert seen[1].ends.tolist() == [-2, 3]


def test_a_state_from_before_it_was_kept_is_taken():
    assert JoinedRange().load_state_dict({}).missing_keys == []


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
