"""Forwards that were set on one module: they are quantized as what they compute."""

from __future__ import annotations

import copy
import functools
import inspect
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.capture.copies import copy_of


def decibels(expected: Tensor, got: Tensor) -> float:
    return float(10 * torch.log10(expected.square().mean() / (expected - got).square().mean()))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.norm, self.drop, self.b = (
            nn.Linear(8, 8),
            nn.ReLU(),
            nn.LayerNorm(8),
            nn.Dropout(),
            nn.Linear(8, 4),
        )

    def forward(self, x):
        return self.b(self.drop(self.norm(self.act(self.a(x)))))


def closure(module: Any) -> None:
    old = module.forward
    module.forward = lambda t: old(t) * 2 + 1


def method(module: Any) -> None:
    module.forward = MethodType(lambda self, t: type(self).forward(self, t) * 2 + 1, module)


def partial(module: Any) -> None:
    """As hooks of other libraries are put around a forward."""

    def new_forward(module, *args, **kwargs):
        return module.old_forward(*args, **kwargs) * 2 + 1

    module.old_forward = module.forward
    module.forward = functools.update_wrapper(functools.partial(new_forward, module), module.old_forward)


def default(module: Any) -> None:
    module.forward = lambda t, module=module: type(module).forward(module, t) * 2 + 1


def compiled(module: Any) -> None:
    closure(module)
    module.forward = torch.compile(module.forward, backend="eager")


def named(module: Any) -> None:
    """As in a notebook, where all names are global."""
    names = {"module": module, "old": module.forward}
    exec("def twice(x): return old(x) * 2\nmodule.forward = lambda x: twice(x) + 1", names)


def nested(module: Any) -> None:
    names = {"old": module.forward}
    exec("def forward(x):\n def inner(t): return old(t) * 2\n return inner(x) + 1", names)
    module.forward = names["forward"]


def listed(module: Any) -> None:
    held = [{"forward": (module.forward,)}]
    module.forward = lambda t: held[0]["forward"][0](t) * 2 + 1


class Helper:
    def __init__(self, module: Any) -> None:
        self.module = module

    def run(self, t):
        return type(self.module).forward(self.module, t) * 2 + 1


def helped(module: Any) -> None:
    module.forward = Helper(module).run


def recursive(module: Any) -> None:
    old = module.forward

    def forward(t, n=2):
        return old(t) * 2 + 1 if n == 0 else forward(t, n - 1)

    module.forward = forward


WAYS = (nested, listed, helped, recursive, closure, method, partial, default, compiled, named)


def prepared(way: Any, path: str) -> tuple[nn.Module, Tensor, fxq.Quantizer]:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(32, 8)
    way(model.get_submodule(path))
    return model, x, fxq.calibrate(fxq.prepare(model, x), [x], progress=False)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("path", ["", "a", "act", "norm", "drop", "b"])
@pytest.mark.parametrize("way", WAYS)
def test_all_forms_compute_it(way, path):
    model, x, quantizer = prepared(way, path)
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(quantizer(x), expected)
        for to in ("int8", "fake_quant", "reference"):
            got = fxq.convert(quantizer, to=to)(x)
            assert not torch.equal(got, expected), "it is float"
            assert decibels(expected, got) > 30


@pytest.mark.one_in(2)
@pytest.mark.parametrize("path", ["", "a", "drop"])
@pytest.mark.parametrize("way", WAYS)
def test_it_trains_the_copy(way, path):
    torch.manual_seed(0)
    model, x = Net().train(), torch.randn(64, 8)
    way(model.get_submodule(path))
    before = copy.deepcopy(model.state_dict())
    training = fxq.prepare_qat(model, x)
    optimizer = torch.optim.SGD(training.parameters(), 0.05)
    for _ in range(4):
        optimizer.zero_grad()
        training(x).square().mean().backward()
        trained = {name for name, parameter in training.named_parameters() if parameter.grad is not None}
        assert trained == {name for name, _ in model.named_parameters()}
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    int8 = fxq.convert(training)
    with torch.no_grad():
        assert torch.equal(int8(x), int8(x)), "it drops values"
        assert decibels(training.eval()(x), int8(x)) > 30
        assert decibels(model.eval()(x), int8(x)) < 30, "int8 has the weights of before"


@pytest.mark.filterwarnings("ignore::fxquant.FxQuantWarning")
def test_a_layer_that_is_left_whole_stays_float():
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(32, 8)
    closure(model.b)
    quantizer = fxq.calibrate(fxq.prepare(model, x, leaf_modules=["b"]), [x], progress=False)
    with torch.no_grad():
        assert decibels(model(x), fxq.convert(quantizer)(x)) > 30
    assert "b" in str(quantizer.coverage())


def test_how_a_convolution_pads_may_be_set():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(), torch.randn(2, 3, 6, 6)
    model[0]._conv_forward = lambda x, weight, bias: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), weight, bias)
    with torch.no_grad():
        assert decibels(model(x), fxq.quantize(model, [x], progress=False)(x)) > 30


def test_without_example_inputs():
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(32, 8)
    closure(model)
    quantizer = fxq.calibrate(fxq.prepare(model, None), [x], progress=False)
    with torch.no_grad():
        assert decibels(model(x), fxq.convert(quantizer)(x)) > 30


def test_a_graph_with_another_forward_is_traced():
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    model = torch.fx.symbolic_trace(Net().eval())
    closure(model)
    with torch.no_grad():
        assert decibels(model(x), fxq.quantize(model, [x], progress=False)(x)) > 30


def test_other_methods_that_were_set_do_not_replace_those_of_the_graph():
    model, x = Net().eval(), torch.randn(32, 8)
    model.recompile, model.extra = (lambda: None), (lambda: 5)
    int8 = fxq.quantize(model, [x], progress=False)
    assert "recompile" not in vars(int8)
    assert int8.extra() == 5


def test_a_copy_keeps_what_is_no_part_of_the_model():
    torch.manual_seed(0)
    model, calls = Net(), []
    old = model.forward

    @functools.wraps(old)
    def forward(x, *, scale=2.0):
        calls.append(1)
        return old(x) * scale

    model.forward = forward
    copied: Any = copy_of(model)
    with torch.no_grad():
        copied.eval().b.weight.zero_()
        copied.b.bias.fill_(3)
        assert torch.equal(copied(torch.randn(2, 8), scale=4.0), torch.full((2, 4), 12.0))
    assert calls == [1]
    assert str(inspect.signature(copied.forward)) == "(x)", "that of what it wraps"
    assert model.forward is forward


def test_a_forward_that_is_that_of_the_class_is_nothing_of_its_own():
    model: Any = nn.Sequential(nn.Linear(4, 4))
    model[0].forward = torch.compile(model[0].forward, backend="eager")
    assert "forward" not in vars(copy_of(model)[0])
    assert "forward" in vars(model[0])


@pytest.mark.parametrize("path", ["a", ""])
def test_a_callable_object_is_copied_with_the_model(path):
    class Twice(Helper):
        __call__ = Helper.run

    torch.manual_seed(0)
    model: Any = Net().train()
    module = model.get_submodule(path)
    module.forward = Twice(module)
    training = fxq.prepare_qat(model, torch.randn(4, 8))
    training(torch.randn(4, 8)).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {name for name, _ in training.named_parameters()} == {name for name, _ in model.named_parameters()}


@pytest.mark.filterwarnings("ignore::fxquant.FxQuantWarning")
def test_what_stays_whole_calls_the_copy_in_each_form():
    torch.manual_seed(0)
    model, x = Net().train(), torch.randn(32, 8)
    closure(model.b)
    training = fxq.prepare_qat(model, x, leaf_modules=["b"])
    training(x)
    int8 = fxq.convert(training)
    with torch.no_grad():
        before = int8(x)
        for parameter in (*training.parameters(), *model.parameters()):
            parameter.zero_()
        assert torch.equal(int8(x), before)


def test_attributes_with_the_names_of_methods_stay():
    model: Any = Net().eval()
    model.half, model.type = True, "vision"
    int8: Any = fxq.quantize(model, [torch.randn(8, 8)], progress=False)
    assert (int8.half, int8.type) == (True, "vision")
