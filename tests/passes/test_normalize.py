from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import GraphModule

import fxquant as fxq
from fxquant.capture.tracing import trace
from fxquant.graph.query import INPLACE, REASON, module_path
from fxquant.passes.normalize import (
    ALIASED,
    CHANGED,
    NO_PLAIN_FORM,
    OVERLAP,
    PROMOTED,
    READS_CHANGED,
    SHARED_MODULE,
    STORED,
    normalize,
)
from tests.outputs import rounding_outputs
from tests.sampling import one_of

X = torch.linspace(-3, 8, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)


def around(operator: str, reason: str, changed: tuple[str, ...], readers: tuple[str, ...]) -> dict[str, str]:
    """The reasons of the values that an in-place operator changes, and of what reads them."""
    named = {name: CHANGED.format(operator, reason) for name in changed}
    return named | {name: READS_CHANGED.format(operator, reason) for name in readers}


class Fn(nn.Module):
    """A model of one function of the input; parts are submodules."""

    def __init__(self, function: Callable[..., object], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def normalized(model: nn.Module, x: Tensor = X, times: int = 1) -> GraphModule:
    """Trace and normalize, and check that values stay, and that doing it again changes nothing."""
    gm = trace(model, example_args=(x,))
    for _ in range(times):
        gm = normalize(gm, None)
    gm.graph.lint()
    gm.recompile()
    torch.testing.assert_close(gm(x.clone()), copy.deepcopy(model)(x.clone()), rtol=0, atol=0, equal_nan=True)
    text = str(gm.graph)
    assert str(normalize(gm, None).graph) == text
    return gm


def calls(gm: GraphModule) -> list[tuple[object, tuple[object, ...], dict[str, object]]]:
    """Target, constant arguments and keywords of every call; nodes stand as "*"."""
    star = lambda value: torch.fx.node.map_arg(value, lambda node: "*")  # noqa: E731
    return [
        (node.target, star(node.args), dict(star(node.kwargs)))
        for node in gm.graph.nodes
        if node.op in ("call_function", "call_method", "call_module")
    ]


def reasons(gm: GraphModule) -> dict[str, str]:
    return {node.name: node.meta[REASON] for node in gm.graph.nodes if REASON in node.meta}


SAME = {
    "relu": (
        (F.relu, ("*",), {}),
        [
            lambda self, x: F.relu(x),
            lambda self, x: torch.relu(input=x),
            lambda self, x: x.relu(),
            lambda self, x: F.relu(x, inplace=True),
            lambda self, x: F.relu(x, True),
            lambda self, x: F.relu_(x),
            lambda self, x: x.relu_(),
            lambda self, x: self.relu(x),
            lambda self, x: self.relu_(input=x),
        ],
    ),
    "relu6": (
        (F.relu6, ("*",), {}),
        [
            lambda self, x: F.relu6(x),
            lambda self, x: F.relu6(x, inplace=True),
            lambda self, x: F.hardtanh(x, 0, 6),
            lambda self, x: F.hardtanh(x, min_val=0.0, max_val=6.0),
            lambda self, x: F.hardtanh_(x, 0.0, 6.0),
            lambda self, x: self.relu6(x),
            lambda self, x: self.hardtanh6(x),
        ],
    ),
    "hardtanh": (
        (F.hardtanh, ("*", -1.0, 1.0), {}),
        [
            lambda self, x: F.hardtanh(x),
            lambda self, x: F.hardtanh(input=x, max_val=1.0),
            lambda self, x: self.hardtanh(x),
        ],
    ),
    "add": (
        (torch.add, ("*", 2), {}),
        [
            lambda self, x: x + 2,
            lambda self, x: 2 + x,
            lambda self, x: torch.add(x, 2),
            lambda self, x: torch.add(input=x, other=2, alpha=1),
            lambda self, x: x.add(other=2),
            lambda self, x: x.add_(2),
            lambda self, x: operator.iadd(x, 2),
        ],
    ),
    "add with alpha": (
        (torch.add, ("*", "*"), {"alpha": 2}),
        [lambda self, x: torch.add(x, x, alpha=2), lambda self, x: x.add(x, alpha=2)],
    ),
    "sub": (
        (torch.sub, ("*", 1), {}),
        [lambda self, x: x - 1, lambda self, x: x.sub(1), lambda self, x: torch.subtract(x, 1)],
    ),
    "rsub": ((torch.rsub, ("*", 1), {}), [lambda self, x: 1 - x, lambda self, x: torch.rsub(x, 1)]),
    "mul": (
        (torch.mul, ("*", 3), {}),
        [lambda self, x: x * 3, lambda self, x: 3 * x, lambda self, x: x.mul(3), lambda self, x: x.mul_(3)],
    ),
    "div": (
        (torch.div, ("*", 4), {}),
        [lambda self, x: x / 4, lambda self, x: x.div(4), lambda self, x: torch.divide(x, 4)],
    ),
    "neg": ((torch.neg, ("*",), {}), [lambda self, x: -x, lambda self, x: x.neg(), lambda self, x: torch.neg(x)]),
    "matmul": (
        (torch.matmul, ("*", "*"), {}),
        [lambda self, x: x @ x, lambda self, x: x.matmul(x), lambda self, x: torch.matmul(x, x)],
    ),
    "cat": (
        (torch.cat, (["*", "*"], 1), {}),
        [
            lambda self, x: torch.cat([x, x], 1),
            lambda self, x: torch.cat(tensors=[x, x], dim=1),
            lambda self, x: torch.concat([x, x], axis=1),
            lambda self, x: torch.concatenate([x, x], dim=1),
        ],
    ),
    "stack": (
        (torch.stack, (["*"], 0), {}),
        [lambda self, x: torch.stack([x]), lambda self, x: torch.stack([x], dim=0)],
    ),
    "mean": (
        (torch.mean, ("*", (2, 3), False), {}),
        [
            lambda self, x: x.mean([2, 3]),
            lambda self, x: x.mean((2, 3), keepdim=False),
            lambda self, x: torch.mean(x, dim=[2, 3]),
            lambda self, x: x.mean(axis=(2, 3)),
        ],
    ),
    "mean of all": ((torch.mean, ("*", None, False), {}), [lambda self, x: x.mean(), lambda self, x: torch.mean(x)]),
    "mean of one": (
        (torch.mean, ("*", (1,), True), {}),
        [lambda self, x: x.mean(1, True), lambda self, x: x.mean(dim=1, keepdim=True)],
    ),
    "max_pool2d": (
        (F.max_pool2d, ("*", 2, 2, 0, 1, False), {}),
        [
            lambda self, x: F.max_pool2d(x, 2),
            lambda self, x: F.max_pool2d(x, kernel_size=2, stride=2),
            lambda self, x: torch.max_pool2d(x, 2),
            lambda self, x: self.max_pool2d(x),
        ],
    ),
    "avg_pool2d": (
        (F.avg_pool2d, ("*", 2, 2, 0, False, True, None), {}),
        [
            lambda self, x: F.avg_pool2d(x, 2),
            lambda self, x: F.avg_pool2d(x, (2), stride=2),
            lambda self, x: self.avg_pool2d(x),
        ],
    ),
    "adaptive_avg_pool2d": (
        (F.adaptive_avg_pool2d, ("*", 1), {}),
        [lambda self, x: F.adaptive_avg_pool2d(x, 1), lambda self, x: self.adaptive_avg_pool2d(x)],
    ),
    "flatten": (
        (torch.flatten, ("*", 1, -1), {}),
        [lambda self, x: x.flatten(1), lambda self, x: torch.flatten(x, start_dim=1), lambda self, x: self.flatten(x)],
    ),
    "reshape": (
        (torch.reshape, ("*", (2, -1)), {}),
        [
            lambda self, x: x.view(2, -1),
            lambda self, x: x.view((2, -1)),
            lambda self, x: x.view([2, -1]),
            lambda self, x: x.reshape(2, -1),
            lambda self, x: torch.reshape(x, (2, -1)),
        ],
    ),
    "permute": (
        (torch.permute, ("*", (0, 2, 3, 1)), {}),
        [
            lambda self, x: x.permute(0, 2, 3, 1),
            lambda self, x: x.permute((0, 2, 3, 1)),
            lambda self, x: torch.permute(x, dims=(0, 2, 3, 1)),
        ],
    ),
    "transpose": (
        (torch.transpose, ("*", 1, 2), {}),
        [lambda self, x: x.transpose(1, 2), lambda self, x: torch.transpose(x, dim0=1, dim1=2)],
    ),
    "chunk": (
        (torch.chunk, ("*", 2, 1), {}),
        [lambda self, x: x.chunk(2, 1), lambda self, x: torch.chunk(x, chunks=2, dim=1)],
    ),
    "split": (
        (torch.split, ("*", 2, 1), {}),
        [
            lambda self, x: x.split(2, 1),
            lambda self, x: x.split(split_size=2, dim=1),
            lambda self, x: torch.split(x, 2, dim=1),
        ],
    ),
    "softmax": (
        (F.softmax, ("*", 1), {}),
        [
            lambda self, x: F.softmax(x, dim=1),
            lambda self, x: x.softmax(1),
            lambda self, x: torch.softmax(x, 1),
            lambda self, x: self.softmax(x),
        ],
    ),
    "sigmoid": (
        (torch.sigmoid, ("*",), {}),
        [
            lambda self, x: F.sigmoid(x),
            lambda self, x: x.sigmoid_(),
            lambda self, x: torch.sigmoid_(x),
            lambda self, x: self.sigmoid(x),
        ],
    ),
    "gelu": (
        (F.gelu, ("*",), {"approximate": "tanh"}),
        [lambda self, x: F.gelu(x, approximate="tanh"), lambda self, x: self.gelu(x)],
    ),
    "elu": (
        (F.elu, ("*", 0.5), {}),
        [lambda self, x: F.elu(x, 0.5), lambda self, x: F.elu(x, alpha=0.5, inplace=True), lambda self, x: self.elu(x)],
    ),
    "interpolate": (
        (F.interpolate, ("*", None, 2.0, "nearest", None, None, False), {}),
        [lambda self, x: F.interpolate(x, scale_factor=2.0), lambda self, x: self.upsample(x)],
    ),
    "pixel_shuffle": (
        (F.pixel_shuffle, ("*", 2), {}),
        [lambda self, x: F.pixel_shuffle(x, 2), lambda self, x: self.pixel_shuffle(x)],
    ),
}


def parts() -> dict[str, nn.Module]:
    return {
        "relu": nn.ReLU(),
        "relu_": nn.ReLU(inplace=True),
        "relu6": nn.ReLU6(inplace=True),
        "hardtanh": nn.Hardtanh(),
        "hardtanh6": nn.Hardtanh(0.0, 6.0),
        "max_pool2d": nn.MaxPool2d(2),
        "avg_pool2d": nn.AvgPool2d(2),
        "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "softmax": nn.Softmax(dim=1),
        "sigmoid": nn.Sigmoid(),
        "gelu": nn.GELU(approximate="tanh"),
        "elu": nn.ELU(0.5),
        "upsample": nn.Upsample(scale_factor=2.0),
        "pixel_shuffle": nn.PixelShuffle(2),
    }


@pytest.mark.parametrize(("expected", "spellings"), one_of(3, SAME.values()), ids=SAME)
def test_every_spelling_becomes_one_call(expected, spellings):
    for spelling in spellings:
        call = calls(normalized(Fn(spelling, **parts())))[0]
        assert call == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: F.max_pool2d(x, 2, return_indices=True),
        lambda self, x: x.view(torch.int32),
        lambda self, x: x.view(x.dtype),
        lambda self, x: x.view(dtype=x.dtype),
        lambda self, x: x.size(0) + 1,
        lambda self, x: 1 / x,
        lambda self, x: x.contiguous(),
        lambda self, x: x.max(1),
    ],
)
def test_what_the_table_cannot_say_stays_as_it_is(function):
    model = Fn(function)
    gm = trace(model, example_args=(X,))
    before = str(gm.graph)
    assert str(normalized(model).graph) == before


def test_parameters_by_keyword_become_positional():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(5, 4, 1, 1))
            self.b = nn.Parameter(torch.ones(5))
            self.v = nn.Parameter(torch.ones(3, 6))

        def forward(self, x):
            return F.linear(bias=None, weight=self.v, input=F.conv2d(weight=self.w, bias=self.b, input=x, groups=1))

    assert calls(normalized(Net())) == [
        (F.conv2d, ("*", "*", "*", 1, 0, 1, 1), {}),
        (F.linear, ("*", "*", None), {}),
    ]


def test_modules_with_parameters_hooks_or_their_own_forward_stay_modules():
    class Mine(nn.ReLU):
        def forward(self, x):
            return x + 1

    hooked = nn.ReLU()
    hooked.register_forward_hook(lambda module, args, out: out + 1)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Dropout(), nn.Identity(), hooked, Mine()).eval()
    assert [call[0] for call in calls(normalized(model))] == ["0", "1", "2", "3", "4", torch.add]


def test_names_and_origins_survive():
    gm = normalized(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()))
    relu = list(gm.graph.nodes)[2]
    assert relu.name == "_1"
    assert module_path(relu) == ("1", nn.ReLU)
    assert isinstance(gm.get_submodule("1"), nn.ReLU)
    assert relu.stack_trace == ""  # called by nn.Sequential: no line of the user's


def test_view_works_on_any_layout():
    gm = normalized(Fn(lambda self, x: x.view(x.size(0), -1)))
    wide = torch.rand(5, 4, 6, 6).to(memory_format=torch.channels_last)
    assert torch.equal(gm(wide), wide.contiguous().view(5, -1))


# In-place operators


def test_a_private_value_is_changed_out_of_place_and_marked():
    gm = normalized(Fn(lambda self, x: self.relu_(self.conv(x)), conv=nn.Conv2d(4, 4, 1), **parts()))
    relu = list(gm.graph.nodes)[2]
    assert relu.target is F.relu
    assert relu.meta[INPLACE]
    assert reasons(gm) == {}


def residual(self, x):
    out = self.conv(x)
    out += x
    return F.relu(out, inplace=True)


def test_a_residual_network_is_plain_and_in_place():
    gm = normalized(Fn(residual, conv=nn.Conv2d(4, 4, 1)))
    assert [(node.name, node.meta.get(INPLACE)) for node in gm.graph.nodes] == [
        ("x", None),
        ("conv", None),
        ("add", True),
        ("relu", True),
        ("output", None),
    ]


def later_read(self, x):
    y = x * 1
    z = y.relu_()
    return y + z  # both are the changed tensor


def test_later_reads_see_the_change():
    gm = normalized(Fn(later_read))
    mul, relu, add = list(gm.graph.nodes)[1:4]
    assert relu.args == (mul,)
    assert add.args == (relu, relu)


def earlier_read(self, x):
    y = x * 1
    before = y * 2
    y.relu_()
    return before, y


def test_earlier_reads_do_not():
    gm = normalized(Fn(earlier_read))
    mul, before, relu, output = list(gm.graph.nodes)[1:5]
    assert before.args == (mul, 2)
    assert output.args[0] == (before, relu)
    assert INPLACE not in relu.meta  # the value is read twice


def on_the_input(self, x):
    x += 1
    return x * 2


def test_the_input_of_the_model_is_no_longer_changed():
    gm = normalized(Fn(on_the_input))
    x = X.clone()
    assert torch.equal(gm(x), (X + 1) * 2)
    assert torch.equal(x, X)
    assert INPLACE not in list(gm.graph.nodes)[1].meta


def through_view(self, x):
    y = self.conv(x)
    flat = y.view(2, -1)
    flat.add_(1)
    return F.relu(y)


def test_the_base_of_a_changed_view_that_is_read_later_keeps_the_change_in_place():
    gm = normalized(Fn(through_view, conv=nn.Conv2d(4, 4, 1)))
    assert reasons(gm) == {"add_": ALIASED, **around("add_", ALIASED, ("conv", "view"), ("relu",))}
    assert [node.target for node in gm.graph.nodes][3] == "add_"


def view_of_changed(self, x):
    y = self.conv(x)
    flat = y.view(2, -1)
    y.add_(1)
    return flat * 2


def test_a_view_of_a_changed_base_too():
    gm = normalized(Fn(view_of_changed, conv=nn.Conv2d(4, 4, 1)))
    assert reasons(gm) == {"add_": ALIASED, **around("add_", ALIASED, ("conv", "view"), ("mul",))}


def base_is_dead(self, x):
    flat = self.conv(x).view(2, -1)
    flat += 1
    return flat * 2


def test_a_view_whose_base_nobody_reads_later_is_plain():
    gm = normalized(Fn(base_is_dead, conv=nn.Conv2d(4, 4, 1)))
    assert reasons(gm) == {}
    assert [call[0] for call in calls(gm)] == ["conv", torch.reshape, torch.add, torch.mul]


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: (lambda y, halves: (halves[0].add_(1), y))(*(lambda y: (y, y.chunk(2, 1)))(x * 1)),
        lambda self, x: (lambda y: (y.select(1, 0).mul_(2), y))(x * 1),
        lambda self, x: (lambda y: (y.detach().add_(1), y))(x * 1),
        lambda self, x: (lambda y: (y.flatten(1).relu_(), y))(x * 1),
        lambda self, x: (lambda y: (y.expand(2, 4, 6, 6).transpose(1, 2).neg_(), y))(x * 1),
        lambda self, x: (lambda y: (self.identity(y).add_(1), y))(x * 1),
        lambda self, x: (lambda y: (self.dropout(y).add_(1), y))(x * 1),
        lambda self, x: (lambda y: (F.relu_(y.T), y.sum()))((x * 1)[0, 0]),
    ],
    ids=["chunk", "select", "detach", "flatten", "transpose", "identity", "dropout", "attribute"],
)
def test_every_kind_of_alias_keeps_the_change(function):
    gm = normalized(Fn(function, identity=nn.Identity(), dropout=nn.Dropout()).eval())
    assert ALIASED in reasons(gm).values()


def test_assignment_to_listed_items_stays_and_says_so():
    def assign(self, x):
        y = x * 2
        y[:, [0, 2]] = 1.0
        return F.relu(y)

    gm = normalized(Fn(assign))
    assert reasons(gm) == {"setitem": NO_PLAIN_FORM, **around("setitem", NO_PLAIN_FORM, ("mul",), ("relu",))}


def test_fills_stay():
    gm = normalized(Fn(lambda self, x: (x * 2).zero_() + 1))
    assert reasons(gm)["zero_"] == NO_PLAIN_FORM


def test_out_argument_stays():
    gm = normalized(Fn(lambda self, x: (lambda y: (torch.add(x, 1, out=y), y * 2)[1])(x * 3)))
    assert reasons(gm) == {"add": NO_PLAIN_FORM, **around("add", NO_PLAIN_FORM, ("mul",), ("mul_1",))}


def test_a_changed_parameter_stays():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            return x + self.count.add_(1)

    gm = normalize(trace(Net(), example_args=(X,)), None)
    gm.recompile()
    assert set(reasons(gm).values()) == {STORED, *around("add_", STORED, ("count",), ()).values()}
    assert torch.equal(gm(X), X + 1)
    assert torch.equal(gm(X), X + 2)


def test_a_dtype_that_the_plain_operator_would_change_stays():
    gm = normalized(Fn(lambda self, x: x.half().add_(x)))
    assert reasons(gm)["add_"] == PROMOTED
    plain = normalized(Fn(lambda self, x: (x * 1).add_(x.long())))
    assert reasons(plain) == {}


def test_numbers_and_tuples_are_not_changed_in_place():
    def count(self, x):
        n = x.size(0)
        n += 1
        sizes = x.shape
        sizes += (1,)
        return x * n

    assert reasons(normalized(Fn(count))) == {}


def test_in_place_modules_that_stay_modules():
    hooked = nn.ReLU(inplace=True)
    hooked.register_forward_hook(lambda module, args, out: None)
    model = Fn(lambda self, x: self.hooked(x * 1), hooked=hooked)
    gm = normalized(model)
    assert not gm.hooked.inplace
    assert model.hooked.inplace
    twice = Fn(lambda self, x: self.hooked(self.hooked(x * 1) * 2), hooked=copy.deepcopy(hooked))
    gm = normalized(twice)
    assert any(SHARED_MODULE in reason for reason in reasons(gm).values())
    assert gm.hooked.inplace


def test_in_place_dropout():
    evaluated = normalized(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout(inplace=True), nn.ReLU()).eval())
    assert reasons(evaluated) == {}
    assert evaluated.get_submodule("1").inplace
    training = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout(inplace=True)).train()
    gm = normalize(trace(training, example_args=(X,)), None)
    assert not gm.get_submodule("1").inplace
    assert reasons(gm) == {}


# Whole models


@pytest.mark.parametrize(
    ("build", "allowed"),
    [
        (lambda: torchvision.models.mobilenet_v2(), {F.relu6, F.adaptive_avg_pool2d, torch.flatten, torch.add}),
        (
            lambda: torchvision.models.googlenet(init_weights=False, aux_logits=False),
            {F.relu, F.max_pool2d, F.adaptive_avg_pool2d, torch.flatten, torch.cat},
        ),
    ],
    ids=["mobilenet_v2", "googlenet"],
)
def test_torchvision_models_become_canonical(build, allowed):
    gm = normalized(build().eval(), torch.rand(1, 3, 64, 64))
    functions = {node.target for node in gm.graph.nodes if node.op == "call_function"}
    assert functions <= allowed
    assert functions >= allowed - {torch.add}
    assert not [node for node in gm.graph.nodes if node.op == "call_method"]
    assert reasons(gm) == {}


def test_what_is_changed_in_place_for_a_join_that_nothing_reads_is_changed():
    def function(m, x):
        before = x.view(-1, 4).view(4, 4)
        changed = x.add_(x)
        before = before.view(-1, 4)
        torch.cat([changed, x])[:4].add_(x)
        return x.view(-1, 4), before

    normalized(Fn(function), torch.linspace(-2, 2, 16).reshape(4, 4), times=2)


# Random programs


def _view(kind: int, value: Tensor) -> Tensor:
    return [
        lambda t: t.view(-1, 4).view(4, 4),
        lambda t: t.t(),
        lambda t: t[:],
        lambda t: t.reshape(4, 4),
        lambda t: t.chunk(2)[0].repeat(2, 1),
    ][kind](value)


def _plain(kind: int, a: Tensor, b: Tensor) -> Tensor:
    return [lambda: a + b, lambda: F.relu(a), lambda: a * 0.5, lambda: a.clone(), lambda: torch.cat([a, b])[:4]][kind]()


def _change(kind: int, a: Tensor, b: Tensor) -> Tensor:
    return [
        lambda: a.add_(b),
        lambda: F.relu(a, inplace=True),
        lambda: a.mul_(0.5),
        lambda: operator.iadd(a, 1),
        lambda: F.hardtanh_(a, -2.0, 2.0),
        lambda: a.sigmoid_(),
        lambda: a.copy_(b),
    ][kind]()


STEP = st.tuples(st.sampled_from("vppcc"), st.integers(0, 6), st.integers(0, 99), st.integers(0, 99))


PROGRAMS = given(st.lists(STEP, min_size=1, max_size=10), st.integers(1, 4))


def keep_their_values(steps, outputs):
    def program(self, x):
        values = [x, x * 2]
        for what, kind, first, second in steps:
            a, b = values[first % len(values)], values[second % len(values)]
            if what == "v":
                values.append(_view(kind % 5, a))
            elif what == "p":
                values.append(_plain(kind % 5, a, b))
            else:
                values.append(_change(kind, a, b))
        return tuple(values[-outputs:])

    x = torch.linspace(-2, 2, 16).reshape(4, 4)
    try:
        Fn(program)(x.clone())
    except RuntimeError:  # views that memory does not allow, changes of overlapping memory
        reject()
    # A second time finds what the first one could not: items of what was an input before its change.
    normalized(Fn(program), x, times=2)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@PROGRAMS
def test_random_programs_keep_their_values(steps, outputs):
    keep_their_values(steps, outputs)


@pytest.mark.slow
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@PROGRAMS
def test_many_random_programs_keep_their_values(steps, outputs):
    keep_their_values(steps, outputs)


def test_the_input_of_a_module_by_keyword_becomes_positional():
    model = Fn(lambda m, x: m.c(input=x), c=nn.Conv2d(4, 4, 1))
    assert calls(normalized(model)) == [("c", ("*",), {})]


class WritesIntoItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        y = self.conv(x)
        x.permute(0, 2, 3, 1).add_(1)
        return y


def test_what_is_written_into_an_input_through_a_view_is_seen_by_the_caller():
    model = WritesIntoItsInput().eval()
    prepared = fxq.prepare(model, X.clone()).calibrate([X.clone()], progress=False)
    for form in (prepared, fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")):
        x = X.clone()
        form(x)
        assert torch.equal(x, X + 1)


def times_itself(y: Tensor) -> None:
    y[:4].addmm_(y[:4], y[:4])


def transposed(y: Tensor) -> None:
    y[:3, :3].add_(y[:3, :3].t())


def moved(y: Tensor) -> None:
    y[:, 1:] = y[:, :-1]


def with_a_bound(y: Tensor) -> None:
    y[:, 1:].clamp_(min=y[:, :-1])


def next_ones(y: Tensor) -> None:
    y[:, 1:] += y[:, :-1]


def spread(y: Tensor) -> None:
    y.mul_(y[:, :1])


def spread_by_an_item(y: Tensor) -> None:
    y[:, :6] += y[:, :1]


def halves(y: Tensor) -> None:
    y[:, :2] += y[:, 2:]


def every_second(y: Tensor) -> None:
    y[:, ::2] = y[:, 1::2] * 2


def its_own(y: Tensor) -> None:
    y[:, 1:] *= y[:, 1:]


def chunks(y: Tensor) -> None:
    a, b = y.chunk(2, 1)
    a += b
    y *= 2


def by_a_mean(y: Tensor) -> None:
    y -= y.mean(1, keepdim=True)


@pytest.mark.parametrize(
    ("change", "stays"),
    [
        *((change, True) for change in (times_itself, transposed, moved, with_a_bound, next_ones)),
        *((change, True) for change in (spread, spread_by_an_item)),
        *((change, False) for change in (halves, every_second, its_own, chunks, by_a_mean)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_reads_another_part_of_what_it_changes_stays_in_place(change: Callable[[Tensor], None], stays: bool):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            change(y)
            return self.last(y * 2)

    torch.manual_seed(0)
    x = torch.randn(6, 4)
    model = Net().eval()
    with torch.no_grad():
        expected = model(x)
        prepared = fxq.prepare(model, x)
        assert torch.equal(prepared(x), expected)
        fxq.calibrate(prepared, [x], progress=False)
        for form in ("int8", "fake_quant"):  # these run generated code, the Quantizer overwrites what it may
            error = fxq.convert(prepared, to=form)(x) - expected
            assert error.square().sum() < 1e-3 * expected.square().sum()
    assert any(row.reason.endswith(OVERLAP) for row in prepared.coverage().rows) is stays


def pieces(y: Tensor) -> Tensor:
    filled = torch.empty(y.shape[0], 7)
    filled[:, :3] = y[:, -1:] * 0.5
    filled[:, 3:] = y
    return filled


def pieces_from_behind(y: Tensor) -> Tensor:
    filled = torch.empty(y.shape[0], 7)
    filled[:, 3:] = y
    filled[:, :3] = y[:, -1:] * 0.5
    return filled


def rows(y: Tensor) -> Tensor:
    filled = torch.zeros(2, *y.shape)
    filled[0] = y
    filled[1].copy_(y * 2)
    return filled


def in_turn(y: Tensor) -> Tensor:
    filled = y.new_zeros(y.shape[0], 8)
    filled[:, ::2] = y
    filled[:, 1::2] = y.relu()
    return filled


def halves_that_change_places(y: Tensor) -> Tensor:
    y[:, :2], y[:, 2:] = y[:, 2:] * 1, y[:, :2] * 1
    return y


AFTER: dict[str, Callable[[Tensor], Tensor]] = {
    "join": lambda y: torch.cat((y * 0.5, y), 1),
    "stack": lambda y: torch.stack((y, y.relu()), 1),
    "chunks": lambda y: torch.cat(y.chunk(2, 1)[::-1], 1),
    "functions": lambda y: F.linear(F.hardtanh(y), torch.eye(4)) + y,
    "norm": lambda y: F.layer_norm(y, (4,)),
    "products": lambda y: torch.einsum("ij,kj->ik", y, y),
    "attention": lambda y: F.scaled_dot_product_attention(y, y, y),
    "table": lambda y: F.silu(y) * y.sigmoid(),
    **{reader.__name__: reader for reader in (pieces, pieces_from_behind, rows, in_turn, halves_that_change_places)},
}


@pytest.mark.parametrize(
    ("after", "alias"),
    one_of(
        3,
        [
            *((name, lambda y: y) for name in AFTER),
            *((name, alias) for name in ("join", "pieces") for alias in (lambda y: y.view(-1, 4), lambda y: y[:, 0:])),
        ],
    ),
)
def test_what_reads_a_changed_value_reads_it_changed(after: str, alias: Callable[[Tensor], Tensor]) -> None:
    """It is not quantized where it comes into being, before the change."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            y = self.first(x)
            other = alias(y)
            y[:, [3, 0]] = self.second(x)[:, [0, 3]] * 3  # by a list: it stays in place
            return AFTER[after](other), self.last(x)

    torch.manual_seed(0)
    x = torch.randn(6, 4)
    model = Net().eval()
    with torch.no_grad():
        expected = model(x)[0]
        prepared = fxq.prepare(model, x, rounding_outputs())
        assert torch.allclose(prepared(x)[0], expected, atol=1e-6)  # an attention sums in another order
        fxq.calibrate(prepared, [x], progress=False)
        for form in ("int8", "fake_quant", "reference"):
            error = fxq.convert(prepared, to=form)(x)[0] - expected
            assert error.square().sum() < 1e-3 * expected.square().sum()


def test_what_a_list_takes_is_a_copy():
    """So a change of the tensor, which reads it, becomes an operator of its own."""
    model = Fn(lambda m, x: _with_more(m.c(x)), c=nn.Conv2d(4, 4, 1)).eval()
    assert not any(row.reason.endswith(OVERLAP) for row in fxq.prepare(model, X).coverage().rows)


def _with_more(y: Tensor) -> Tensor:
    y[:, 1:] *= y[:, [0, 0, 1]]
    y[:, 1:] += y[:, torch.tensor([2, 2, 1])]
    return y


VIEWS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a list of slices": lambda self, y: y[[slice(None), slice(0, 2)]],
    "a list with all dimensions": lambda self, y: y[[..., slice(0, 2)]],
    "a number of a tuple": lambda self, y: y.chunk(2, 1)[True],
    "a tensor for a tuple": lambda self, y: y.chunk(2, 1)[self.one],
    "a tensor without dimensions": lambda self, y: y[self.one[0]],
    "a slice": lambda self, y: y[:, : y.shape[1] // 2],
}


def in_list(self: Any, y: Tensor) -> None:
    torch._foreach_mul_([y, self.second(y)], 3.0)


def as_second_result(self: Any, y: Tensor) -> None:
    torch.sort(self.second(y), 1, out=(y, torch.empty(6, 4, dtype=torch.long)))


CHANGES: dict[str, Callable[[Any, Tensor], Any]] = {
    **{name: lambda self, y, view=view: view(self, y).mul_(3) for name, view in VIEWS.items()},
    "several in a list": in_list,
    "several results": as_second_result,
    "a computed part": lambda self, y: operator.setitem(y, (..., slice(y.shape[1] // 2)), self.second(y)[:, :2]),
}


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_changed_by_another_name_is_seen_by_its_readers(change: Callable[[Any, Tensor], Any]) -> None:
    class Net(nn.Module):
        one: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("one", torch.tensor([1]))

        def forward(self, x: Tensor) -> Any:
            y = self.first(x)
            change(self, y)
            return self.last(y), y, self.last(x)

    torch.manual_seed(0)
    x = torch.randn(6, 4)
    model = Net().eval()
    with torch.no_grad():
        expected = model(x)
        prepared = fxq.prepare(model, x, rounding_outputs())
        assert all(map(torch.equal, prepared(x), expected))
        fxq.calibrate(prepared, [x], progress=False)
        for form in ("int8", "fake_quant", "reference"):
            for got, wanted in zip(fxq.convert(prepared, to=form)(x), expected, strict=True):
                assert (got - wanted).square().sum() < 1e-3 * wanted.square().sum()


IN_PLACE = {
    "relu": (lambda x: F.relu(x, inplace=True), False),
    "add": (lambda x: x.add_(1), False),
    "view": (lambda x: (x[:, :2].add_(1), x)[1], True),
    "transposed": (lambda x: (x.t().mul_(2), x)[1], True),
    "out": (lambda x: torch.add(x, 1, out=x), True),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_a_prepared_model_writes_into_the_callers_tensor(name):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.last(self.first(IN_PLACE[name][0](x)).relu())

    torch.manual_seed(0)
    example = torch.randn(3, 8)
    prepared = fxq.calibrate(fxq.prepare(Net().eval(), example.clone()), [example.clone()], progress=False)
    changed = example.clone()
    with torch.no_grad():
        Net()(changed)
    for form in (prepared, *(fxq.convert(prepared, to=to) for to in ("int8", "fake_quant", "reference"))):
        for _ in range(3):
            batch = example.clone()
            with torch.no_grad():
                form(batch)
            assert torch.equal(batch, changed if IN_PLACE[name][1] else example)
