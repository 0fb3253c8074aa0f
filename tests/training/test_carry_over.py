"""What a model says of its modes holds for the graph that trains: frozen batch norms, a ``train`` of its own."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq

pytestmark = pytest.mark.filterwarnings("ignore:code that runs only while training is left out")

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LEAST = 38
"""Decibels that a model of two convolutions has at 8 bits; what a batch normalizes by itself has 5."""


def decibels(expected: Tensor, got: Tensor) -> float:
    return 10 * (expected.square().mean() / (expected - got).square().mean()).log10().item()


class Frozen(nn.Module):
    """As detectron2's: all of it are buffers, and its call says in which mode it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.linspace(0.5, 1.5, 8))
        self.register_buffer("bias", torch.linspace(-1, 1, 8))
        self.register_buffer("running_mean", torch.full((8,), 3.0))
        self.register_buffer("running_var", torch.full((8,), 4.0))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training=False)


class ByDefault(Frozen):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)


class Derived(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.1, self.eps)


class Following(nn.BatchNorm2d):
    """As torch's own: the number that it gives to the call depends on its mode."""

    def forward(self, x: Tensor) -> Tensor:
        batch = True if self.training else self.running_mean is None
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, batch, 0.1, self.eps)


class Told(Following):
    """Its caller decides, by the mode of its own."""

    def forward(self, x: Tensor, batch: bool = False) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, batch, 0.1, self.eps)


class Asks(nn.Module):
    """Something else in the model that looks at its mode."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return x.add(0.01)
        return x + 0.01


class Net(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.asks, self.norm, self.last = nn.Conv2d(3, 8, 3), Asks(), norm, nn.Conv2d(8, 4, 1)
        self.tells = isinstance(norm, Told)
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.asks(self.first(x))
        told = [bool(self.training)] if self.tells else []
        return self.last(F.relu(self.norm(y, *told)))


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items() if "running_" in name}


FROZEN = {"says False": Frozen, "by default": ByDefault, "a batch norm that says False": lambda: Derived(8)}


@pytest.mark.parametrize("norm", FROZEN.values(), ids=FROZEN.keys())
def test_a_batch_norm_whose_call_says_evaluation_is_in_it_while_training(norm):
    model = Net(norm()).train()
    expected, qat = model(X), fxq.prepare_qat(model, X).train()
    before = statistics(qat)
    for _ in range(3):
        assert decibels(expected, qat(X)) > LEAST
    assert all(torch.equal(value, before[name]) for name, value in statistics(qat).items())
    assert statistics(qat).keys() == statistics(model).keys()
    for copied in (copy.deepcopy(qat), qat):
        assert decibels(model.eval()(X), fxq.convert(copied.eval(), check=X)(X)) > LEAST


def test_its_buffers_are_not_trained():
    qat = fxq.prepare_qat(Net(Frozen()).train(), X).train()
    qat(X).square().mean().backward()
    trained = {name for name, parameter in qat.named_parameters() if parameter.grad is not None}
    assert trained == {"first.weight", "first.bias", "last.weight", "last.bias"}


def test_in_a_program_of_torch_export_one_whose_weight_is_a_buffer_is_frozen():
    model = Net(Frozen()).eval()
    qat = fxq.prepare_qat(torch.export.export(model, (X,)), X).train()
    before = statistics(qat)
    assert decibels(model(X), qat(X)) > LEAST
    assert all(torch.equal(value, before[name]) for name, value in statistics(qat).items())
    # That of a torch.nn layer trains, as the program cannot tell in which mode it would be.
    qat = fxq.prepare_qat(torch.export.export(Net(nn.BatchNorm2d(8)).eval(), (X,)), X).train()
    before = statistics(qat)
    qat(X)
    assert not any(torch.equal(value, before[name]) for name, value in statistics(qat).items())


@pytest.mark.parametrize("norm", [Following, Told, nn.BatchNorm2d])
def test_one_that_follows_the_mode_trains(norm):
    model = Net(norm(8)).train()
    qat = fxq.prepare_qat(model, X).train()
    assert decibels(model(X).detach(), qat(X).detach()) > LEAST
    for name, value in statistics(qat).items():
        assert torch.allclose(value, model.state_dict()[name], atol=0.01), name  # of values that are rounded


class NormEval(Net):
    """As mmdetection's backbones: ``train`` leaves batch norms in evaluation mode."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


def pickled(model: nn.Module, folder: Path) -> nn.Module:
    torch.save(model, folder / "model.pt")
    return torch.load(folder / "model.pt", weights_only=False)


@pytest.mark.parametrize("around", [lambda model: model, lambda model: nn.Sequential(model, nn.ReLU())])
@pytest.mark.parametrize("begun", [True, False])
def test_what_train_of_the_model_leaves_in_evaluation_mode_stays_in_it(
    around: Callable[[nn.Module], nn.Module], begun: bool, tmp_path: Path
):
    model = around(NormEval(nn.BatchNorm2d(8))).train(begun)
    modes = {name: module.training for name, module in model.named_modules()}
    qat = fxq.prepare_qat(model, X)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert {module.training for module in qat.modules() if isinstance(module, nn.BatchNorm2d)} == {False}
    expected, before = model.train()(X), statistics(qat)
    for each in (qat, copy.deepcopy(qat), pickled(qat, tmp_path)):
        assert each.train().training
        assert decibels(expected, each(X)) > LEAST
        assert all(torch.equal(value, before[name]) for name, value in statistics(each).items())
    assert not any(module.training for module in qat.eval().modules())


class Whole(Net):
    """Never trains itself; its parts do."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.training = False
        return self


class Adapter(Net):
    """The last layers train in a frozen model."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__(norm)
        self.last = nn.Sequential(self.last, nn.BatchNorm2d(4))
        self.body = nn.Sequential(self.last)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.body.eval()
        self.body[0][1].train(mode)
        return self


class Never(Net):
    def train(self, mode: bool = True) -> Any:
        if mode:
            raise RuntimeError("for inference")
        return super().train(mode)


class Nothing(Net):
    """Forgets to return itself."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.norm.eval()


@pytest.mark.parametrize("kind", [Whole, Adapter, Nothing])
def test_modes_are_those_of_the_model(kind):
    model = kind(nn.BatchNorm2d(8))
    model.train()
    qat = fxq.prepare_qat(model, X)
    for mode in (False, True, False, True):
        model.train(mode)
        qat.train(mode)
        modes = {name: module.training for name, module in qat.named_modules() if isinstance(module, nn.BatchNorm2d)}
        assert modes == {name: model.get_submodule(name).training for name in modes}
        assert qat.training is model.training


def test_a_train_that_fails_says_nothing():
    qat = fxq.prepare_qat(Never(nn.BatchNorm2d(8)).train(False), X).train()
    assert all(module.training for module in qat.modules())


def test_a_train_that_was_set_and_holds_the_model_is_not_called():
    def train(given: Any, mode: bool = True) -> Any:
        nn.Module.train(given, mode)
        given.norm.eval()
        return given

    model = Net(nn.BatchNorm2d(8))
    model.train = functools.partial(train, model)  # type: ignore[method-assign]
    model.eval()
    fxq.prepare_qat(model, X)
    assert not any(module.training for module in model.modules())


class Drops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.training)


class DropsNothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(8, 8), Drops(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.first(x)))

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.drop.eval()
        return self


@pytest.mark.parametrize("begun", [True, False])
def test_functions_have_the_mode_of_the_module_that_calls_them(begun):
    qat = fxq.prepare_qat(DropsNothing().train(begun), X[:, 0]).train()
    qat(X[:, 0])
    qat.apply(fxq.disable_observer)
    assert torch.equal(qat(X[:, 0]), qat(X[:, 0]))


def test_what_says_evaluation_stays_frozen_whatever_is_switched():
    qat = fxq.prepare_qat(Net(Frozen()).train(), X).train()
    for switch in (fxq.update_bn_stats, fxq.freeze_bn_stats, fxq.update_bn_stats):
        qat.apply(switch)
    before = statistics(qat)
    qat(X)
    assert all(torch.equal(value, before[name]) for name, value in statistics(qat).items())


class Flag(nn.BatchNorm2d):
    flag = False

    def forward(self, x: Tensor, batch: Any = None) -> Tensor:
        batch = self.flag if batch is None else batch["train"] if isinstance(batch, dict) else batch == "train"
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, batch, 0.1, self.eps)


class ByAttribute(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.norm.flag = bool(self.training)
        return self.last(F.relu(self.norm(self.first(x))))


class ByDict(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.norm(self.first(x), {"train": bool(self.training)})))


class ByText(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.norm(self.first(x), "train" if self.training else "eval")))


class ByTrain(Net):
    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.norm.flag = mode
        return self


@pytest.mark.parametrize("kind", [ByAttribute, ByDict, ByText, ByTrain])
def test_one_that_is_told_by_others_trains(kind):
    norm = Flag(8)
    norm.flag = False
    model = kind(norm).train()
    qat = fxq.prepare_qat(model, X).train()
    before = statistics(qat)
    qat(X)
    assert not any(torch.equal(value, before[name]) for name, value in statistics(qat).items())


class OwnTrain(Net):
    def train(self, mode: bool = True) -> Any:
        return super().train(mode)


def test_a_train_that_keeps_nothing_changes_nothing():
    model = OwnTrain(nn.BatchNorm2d(8))
    qat = fxq.prepare_qat(model, X).eval().train()
    assert all(module.training for module in qat.modules())
