"""Functions of constant weights become layers: where these stand, what is shared, and what is left alone."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning
from fxquant.graph.query import module_of
from fxquant.patterns import DEFAULT_PATTERNS, Pattern, op, tensor
from tests.outputs import rounding_outputs

X = torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))
ROWS = torch.rand(3, 4, generator=torch.Generator().manual_seed(1))


class Fn(nn.Module):
    def __init__(self, function: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class PaddedConv(nn.Conv2d):
    """Pads more on the right than on the left, as TensorFlow does."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, [0, 1, 0, 1]), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class OwnNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        training = self.training or self.running_mean is None
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training, 0.1, self.eps)


def rand(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(shape, generator=torch.Generator().manual_seed(2)))


def prepared(model: nn.Module, x: Tensor = ROWS, **more: Any) -> fxq.Quantizer:
    """Prepare, and see that the float graph gives what the model does."""
    made = fxq.prepare(model.eval(), x, **more)
    with torch.no_grad():
        assert torch.equal(made(x), model(x))
    return made


def layers(made: fxq.Quantizer) -> dict[str, str]:
    """Path -> class, of the modules that are called."""
    called = {str(node.target): module_of(node) for node in made.graph.nodes if node.op == "call_module"}
    return {path: type(module).__name__ for path, module in called.items()}


def units(made: fxq.Quantizer) -> list[str]:
    return [unit.pattern for unit in made.plan.units]


def test_a_layer_with_a_forward_of_its_own_keeps_its_names():
    model = nn.Sequential(PaddedConv(4, 6, 3, stride=2, groups=2), OwnNorm(6), nn.ReLU())
    made = prepared(model, X)
    assert layers(made) == {"0": "Conv2d", "1": "BatchNorm2d"}
    assert units(made) == ["pad", "conv_bn_act"]
    assert set(made.graph_module.state_dict()) == set(model.state_dict())
    int8 = fxq.convert(made)
    assert int8.get_submodule("0").weight.dtype == torch.int8


def test_weights_of_the_model_itself_give_their_names():
    made = prepared(Fn(lambda m, x: torch.relu(F.linear(x, m.w, m.b)), w=rand(5, 4), b=rand(5)))
    assert layers(made) == {"w": "Linear"}
    assert units(made) == ["linear_act"]
    assert set(made.graph_module.state_dict()) == {"w.weight", "w.bias"}


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: F.linear(bias=m.b, weight=m.w, input=x),
        lambda m, x: F.linear(x, m.w, bias=m.b),
        lambda m, x: F.linear(x, weight=m.w, bias=m.b),
    ],
)
def test_keywords_make_no_difference(function):
    parts = {"w": rand(5, 4), "b": rand(5)}
    twin = prepared(Fn(lambda m, x: F.linear(x, m.w, m.b), **parts))
    made = prepared(Fn(function, **parts))
    assert torch.equal(fxq.convert(made)(ROWS), fxq.convert(twin)(ROWS))


class WithBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.rand(4, 1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernel, groups=x.shape[1] if x is None else 4)


COMPUTED = {
    "a scale": lambda m, x: F.linear(x, m.w * m.s),
    "normalized": lambda m, x: F.linear(x, F.normalize(m.w, dim=1)),
    "transposed": lambda m, x: F.linear(x, m.w.t()),
    "a product with a transposed one": lambda m, x: x @ m.w.t(),
    "a product": lambda m, x: torch.matmul(x, m.w),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_weights_computed_of_constants(name):
    made = prepared(Fn(COMPUTED[name], w=rand(4, 4), s=rand(4, 1)))
    assert units(made) == ["linear"]
    assert made.coverage().int8_macs == 1.0
    assert not any(node.op == "get_attr" for node in made.graph.nodes)


def test_a_slope_made_in_forward():
    made = prepared(Fn(lambda m, x: F.prelu(x, torch.tensor([0.3]))), ROWS - 0.5, qconfig=rounding_outputs())
    assert layers(made) == {"_tensor_constant0": "PReLU"}
    assert "_tensor_constant0" not in vars(made)  # where it would hide the layer


def test_a_buffer_is_a_weight_that_is_not_trained():
    made = prepared(nn.Sequential(WithBuffer()), X)
    assert layers(made) == {"0.kernel": "Conv2d"}
    assert not made.graph_module.get_submodule("0.kernel").weight.requires_grad


def test_a_list_of_parameters():
    made = prepared(
        Fn(lambda m, x: F.linear(F.linear(x, m.p[0]), m.p[1]), p=nn.ParameterList([rand(6, 4), rand(3, 6)]))
    )
    assert layers(made) == {"p.0": "Linear", "p.1": "Linear"}


def test_a_weight_that_a_layer_holds_too_stays_one_tensor():
    made = prepared(Fn(lambda m, x: F.linear(m.l(x), m.l.weight), l=nn.Linear(4, 4)))
    assert layers(made) == {"l": "Linear", "linear": "Linear"}
    assert made.graph_module.get_submodule("linear").weight is made.graph_module.get_submodule("l").weight


def test_equal_calls_share_a_layer_and_others_share_the_tensor():
    def function(m: Any, x: Tensor) -> Tensor:
        return F.linear(F.linear(F.linear(x, m.w), m.w), m.w, m.b)

    made = prepared(Fn(function, w=rand(4, 4), b=rand(4)))
    assert layers(made) == {"w": "Linear", "linear_2": "Linear"}
    targets = [node.target for node in made.graph.nodes if node.op == "call_module"]
    assert targets == ["w", "w", "linear_2"]
    assert made.graph_module.get_submodule("w").weight is made.graph_module.get_submodule("linear_2").weight


LEFT_ALONE = {
    "of the input": lambda m, x: F.linear(m.l(x), x[:, :4]),
    "with a bias of the input": lambda m, x: F.linear(m.l(x), m.w, x[0, :4]),
    "that changes": lambda m, x: F.linear(m.l(x), m.w.data.mul_(1.0)),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_a_weight_that_may_change_is_no_layer(name):
    made = prepared(Fn(LEFT_ALONE[name], w=rand(4, 4), l=nn.Linear(4, 4)))
    assert layers(made) == {"l": "Linear"}
    row = next(row for row in made.coverage().float_rows if row.operator == "linear")
    assert row.reason == "its weight is computed from the inputs; only one that stays the same is quantized"


@pytest.mark.parametrize("target", [F.linear, nn.Linear])
def test_rules_by_type_reach_functions(target):
    rules = fxq.get_default_qconfig_mapping().set_object_type(target, None)
    made = prepared(
        Fn(lambda m, x: F.conv1d(F.linear(x, m.w)[..., None], m.k), w=rand(4, 4), k=rand(3, 4, 1)), qconfig=rules
    )
    (row,) = [row for row in made.coverage().float_rows if row.operator == "Linear"]
    assert row.reason.startswith("the configuration leaves it in float: set_object_type(")
    assert row.excused


def test_rules_by_name_reach_functions():
    rules = fxq.get_default_qconfig_mapping().set_module_name("0", None)
    made = prepared(nn.Sequential(WithBuffer(), nn.Conv2d(4, 3, 1)), X, qconfig=rules)
    assert units(made) == ["conv"]


class Kernels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.weight = rand(4, 4, 1, 1), rand(3, 4, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, self.kernel), self.weight)


@pytest.mark.parametrize(
    ("rule", "in_float"),
    [
        ("w", ["w"]),
        ("inner.kernel", ["inner.kernel"]),
        ("inner.weight", ["inner.weight"]),
        ("inner", ["inner.kernel", "inner.weight"]),
    ],
)
@pytest.mark.parametrize("kind", ["name", "regex"])
def test_a_weight_gives_its_function_a_name_for_rules(rule, in_float, kind):
    rules = fxq.get_default_qconfig_mapping()
    (rules.set_module_name if kind == "name" else rules.set_module_name_regex)(rule, None)
    made = prepared(
        Fn(
            lambda m, x: m.last(m.inner(F.conv2d(x, m.w))), w=rand(4, 4, 1, 1), inner=Kernels(), last=nn.Conv2d(3, 3, 1)
        ),
        X,
        qconfig=rules,
    )
    assert [row.module for row in made.coverage().float_rows] == in_float
    assert all(row.excused for row in made.coverage().float_rows)


def test_a_rule_that_nearly_names_a_weight():
    rules = fxq.get_default_qconfig_mapping().set_module_name("inner.kernal", None)
    with pytest.warns(FxQuantWarning) as caught:
        prepared(nn.Sequential(OrderedDict(inner=Kernels())), X, qconfig=rules)
    assert [str(warning.message) for warning in caught] == [
        "a rule of the configuration matches nothing in the model\n"
        "  got:      set_module_name('inner.kernal')\n"
        "  hint:     did you mean 'inner.kernel'?"
    ]


PRODUCTS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "operator": lambda m, x: (y := m.l(x)) @ y.T,
    "function": lambda m, x: torch.matmul(y := m.l(x), y.T),
    "method": lambda m, x: (y := m.l(x)).matmul(y.T),
}


@pytest.mark.parametrize("written", PRODUCTS)
@pytest.mark.parametrize("named", [torch.matmul, operator.matmul, "matmul"])
def test_a_rule_for_one_spelling_is_one_for_all(written, named):
    rules = fxq.get_default_qconfig_mapping().set_object_type(named, None)
    made = prepared(Fn(PRODUCTS[written], l=nn.Linear(4, 4)), qconfig=rules)
    row = next(row for row in made.coverage().float_rows if row.operator == "matmul")
    assert row.reason.startswith("the configuration leaves it in float: set_object_type(")


@pytest.mark.parametrize("named", [F.conv2d, torch.conv2d, "conv2d", nn.Conv2d])
def test_functions_go_by_their_names_as_methods_do(named):
    rules = fxq.get_default_qconfig_mapping().set_object_type(named, None)
    model = Fn(lambda m, x: m.l(F.conv2d(x, m.w).mean((2, 3))), w=rand(4, 4, 1, 1), l=nn.Linear(4, 4))
    made = prepared(model, X, qconfig=rules)
    assert [row.module for row in made.coverage().float_rows] == ["w"]


class Mine:
    def observe(self, node: Any, env: Any) -> None:
        pass

    def quantize(self, quantizer: Any, node: Any, load_arg: Any) -> Any:
        return NotImplemented


def test_a_function_that_a_users_pattern_names_stays_one():
    mine = Pattern("mine", root=op(F.linear)(tensor("x")), inputs=(), handler=Mine)
    model = Fn(lambda m, x: m.l(F.linear(x, m.w)), w=rand(4, 4), l=nn.Linear(4, 4))
    made = prepared(model, patterns=(*DEFAULT_PATTERNS, mine))
    assert units(made) == ["mine", "linear"]


def test_statistics_of_the_batch_are_no_layer():
    model = Fn(lambda m, x: m.c(F.batch_norm(m.c(x), None, None, training=True)), c=nn.Conv2d(4, 4, 1))
    (row,) = prepared(model, X).coverage().float_rows
    assert row.operator == "batch_norm"
    assert row.reason == "it normalizes by statistics of the batch, or by others that are computed at run time"
