"""Hooks of modules that are traced through: those that only look are warned of, those that compute are traced."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import fxquant as fxq
from fxquant.capture.hooks import materialize_parametrizations
from fxquant.errors import FxQuantWarning
from tests.sampling import one_of

X = torch.rand(2, 4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.last = Block(), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.block(x))


@pytest.mark.parametrize("way", ["pre", "post", "with kwargs"])
def test_a_hook_that_only_looks_is_warned_of(way):
    model, seen = Net().eval(), []
    if way == "pre":
        model.block.register_forward_pre_hook(lambda module, args: seen.append(1))
    elif way == "post":
        model.block.register_forward_hook(lambda module, args, result: seen.append(1))
    else:
        model.block.register_forward_hook(lambda module, args, kwargs, result: seen.append(1), with_kwargs=True)
    with pytest.warns(FxQuantWarning) as caught:
        prepared = fxq.prepare(model, X)
    assert [str(warning.message) for warning in caught] == [
        "hooks that only look at values ran once, while the model was traced, and will not run again\n"
        "  got:      block\n"
        '  hint:     leaf_modules=("block",) keeps a module whole and in float, with its hooks'
    ]
    assert torch.equal(prepared(X), model(X))


def test_the_hint_of_that_warning_works():
    model, seen = Net().eval(), []
    model.block.register_forward_hook(lambda module, args, result: seen.append(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared = fxq.prepare(model, X, leaf_modules=("block",)).calibrate([X], progress=False)
    int8, before = fxq.convert(prepared), len(seen)
    int8(X), int8(X)
    assert len(seen) == before + 2


def test_a_hook_that_computes_is_part_of_the_graph():
    model = Net().eval()
    model.block.register_forward_hook(lambda module, args, result: result * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared = fxq.prepare(model, X)
    assert torch.equal(prepared(X), model(X))


def test_hooks_of_layers_and_of_the_model_run_in_every_call():
    model, seen = Net().eval(), []
    model.last.register_forward_hook(lambda module, args, result: seen.append("last"))
    model.register_forward_pre_hook(lambda module, args: seen.append("model"))
    int8 = fxq.convert(fxq.prepare(model, X).calibrate([X], progress=False))
    seen.clear()
    int8(X)
    int8(X)
    assert seen == ["model", "last"] * 2


class MakesModules(nn.Module):
    """Calls a module that it does not hold, so that the whole model is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.last = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.ReLU()(self.fc(x)))


def doubled_in_place(module: nn.Module, args: tuple[Tensor]) -> None:
    args[0].mul_(2)


HOOKS = {
    "result": lambda model: model.register_forward_hook(lambda module, args, result: result * 3 + 1),
    "always": lambda model: model.register_forward_hook(lambda module, args, y: y * 3 + 1, always_call=True),
    "inputs": lambda model: model.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "by name": lambda model: model.register_forward_pre_hook(
        lambda module, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True
    ),
    "in place": lambda model: model.register_forward_pre_hook(doubled_in_place),
    "of a layer": lambda model: model.fc.register_forward_hook(lambda module, args, result: result * 3 + 1),
}


@pytest.mark.parametrize("capture", ["auto", "export"])
@pytest.mark.parametrize("name", one_of(3, HOOKS))
def test_hooks_of_an_exported_model_run_once(name, capture):
    model, seen = MakesModules().eval(), []
    HOOKS[name](model)
    model.register_forward_hook(lambda module, args, result: seen.append(1))
    expected = model(X.clone())
    prepared = fxq.prepare(model, X.clone(), capture=capture)
    seen.clear()
    torch.testing.assert_close(prepared(X.clone()), expected)
    assert seen == [1]
    assert len(model._forward_hooks) + len(model._forward_pre_hooks) == (1 if name == "of a layer" else 2)


BACKWARD = ["register_full_backward_hook", "register_full_backward_pre_hook", "register_backward_hook"]


@pytest.mark.parametrize("register", BACKWARD)
@pytest.mark.parametrize("prepare", [fxq.prepare, fxq.prepare_qat])
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook", "ignore:Full backward hook is firing")
def test_a_hook_of_the_backward_pass_of_a_container_is_warned_of(prepare, register):
    model, seen = Net().eval(), []
    getattr(model.block, register)(lambda *given: seen.append("block"))
    with pytest.warns(FxQuantWarning) as caught:
        prepare(model, X)
    assert [str(warning.message) for warning in caught] == [
        "hooks of the backward pass do not run where a module is traced through\n"
        "  got:      block\n"
        '  hint:     leaf_modules=("block",) keeps a module whole and in float, with its hooks'
    ]
    assert not seen
    model(X.clone().requires_grad_()).sum().backward()
    assert seen == ["block"]  # the user's model has it as before


@pytest.mark.parametrize("register", BACKWARD)
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook", "ignore:Full backward hook is firing")
def test_the_hint_of_that_warning_works_too(register):
    model, seen = Net().train(), []
    getattr(model.block, register)(lambda *given: seen.append("block"))
    getattr(model, register)(lambda *given: seen.append("model"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FxQuantWarning)
        qat = fxq.prepare_qat(model, X, leaf_modules=("block",))
    qat(X.clone().requires_grad_()).sum().backward()
    assert sorted(seen) == ["block", "model"]


class Tied(nn.Module):
    """One weight under two names; another whose gradient is masked, and one that is frozen for now."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)
        self.a, self.b, self.masked, self.frozen = (nn.Linear(4, 4) for _ in range(4))
        self.b.weight = self.a.weight

    def forward(self, x):
        x = self.norm(self.conv(x[None, None]))[0, 0]
        return self.frozen(self.masked(self.b(torch.relu(self.a(x)))))


def test_hooks_of_parameters_are_kept_for_training():
    model, seen = Tied().train(), []
    mask = torch.eye(4)
    model.masked.weight.register_hook(lambda gradient: gradient * mask)
    model.a.weight.register_hook(lambda gradient: seen.append("tied"))
    model.conv.weight.register_hook(lambda gradient: seen.append("folded"))
    model.frozen.weight.register_hook(lambda gradient: seen.append("frozen"))
    model.frozen.weight.requires_grad_(False)
    qat = fxq.prepare_qat(model, X)
    qat(X).square().sum().backward()
    gradient = qat.get_parameter("masked.weight").grad
    assert torch.equal(gradient, gradient * mask)
    assert float(gradient.abs().sum()) > 0
    assert seen == ["tied", "folded"]
    assert not qat.get_parameter("frozen.weight").requires_grad
    qat.get_parameter("frozen.weight").requires_grad_(True)
    qat(X).square().sum().backward()
    assert "frozen" in seen
    assert all(parameter.grad is None for parameter in model.parameters())


def test_hooks_that_know_a_parameter_by_what_it_is_stay_on_it():
    """The optimizer step inside backward: the hook looks its parameter up."""
    model = Tied().train()
    steps = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()}
    for parameter in (model.a.weight, model.masked.bias):
        parameter.register_post_accumulate_grad_hook(lambda each: steps[each].step())
    with pytest.warns(fxq.FxQuantWarning) as caught:
        qat = fxq.prepare_qat(model, X)
    assert str(caught[0].message) == (
        "hooks that run after a gradient was accumulated stay on the parameters of the float model\n"
        "  got:      a.weight\n"
        "            masked.bias\n"
        "  hint:     register them on the parameters of the model that trains"
    )
    qat(X).square().sum().backward()
    assert qat.get_parameter("a.weight").grad is not None


class Index(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.order = nn.Parameter(torch.arange(3, -1, -1), requires_grad=False)

    def forward(self, x):
        return self.layer(x)[:, self.order]


def test_a_parameter_of_whole_numbers_takes_no_hook():
    qat = fxq.prepare_qat(Index().train(), X)
    assert qat(X).shape == X.shape


ROWS = torch.linspace(-1, 1, 24).reshape(4, 6)


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
        expected = model(ROWS)
    keys, kind = set(model.state_dict()), type(model[0])
    baked = copy.deepcopy(model)
    materialize_parametrizations(baked)
    assert type(baked[0]) is nn.Linear
    assert set(baked.state_dict()) == {"0.weight", "0.bias"}
    assert all(isinstance(value, nn.Parameter) for value in (baked[0].weight, baked[0].bias))
    with torch.no_grad():
        assert torch.equal(baked(ROWS), expected)
        assert torch.equal(pickle.loads(pickle.dumps(baked))(ROWS), expected)
        assert torch.equal(model(ROWS), expected)
    assert set(model.state_dict()) == keys
    assert type(model[0]) is kind


def test_other_hooks_stay():
    model = nn.Sequential(old("weight_norm"))
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    materialize_parametrizations(model)
    assert torch.equal(model(ROWS), model[0].bias.expand(4, 6))


@pytest.mark.parametrize("name", MAKERS)
def test_products_are_summed_as_with_a_computed_weight(name):
    """Of an input that is not dense, torch sums them in another order if the weight might be given a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(MAKERS[name]()).eval()
    x = torch.randn(5, 6, 7).transpose(1, 2)
    with torch.no_grad():
        assert torch.equal(fxq.prepare(model, x).graph_module(x), model(x))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("prepare", [fxq.prepare, fxq.prepare_qat])
def test_a_state_dict_loads_into_another_preparation(name, prepare):
    """A spectral norm of the old kind adds hooks that ask for the tensors that its weight is computed of."""
    torch.manual_seed(0)
    model = nn.Sequential(MAKERS[name](), nn.ReLU(), nn.Linear(6, 2)).eval()
    prepared, other = prepare(model, ROWS), prepare(model, ROWS)
    other.load_state_dict(prepared.state_dict())
    assert list(other.state_dict()) == list(prepared.state_dict())
    model.load_state_dict(model.state_dict())
