"""Functions of constant weights become layers, and products and sums with constants become norms."""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

import fxquant as fxq
from fxquant.errors import FxQuantWarning, InputError
from fxquant.graph.query import module_of
from fxquant.measure.noise import sqnr
from fxquant.measure.parity import measure_parity
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


EXPANDED = {
    "a kernel for all channels": (lambda m, x: F.conv2d(x, m.kernel.expand(4, 1, 3, 3), groups=4), rand(1, 1, 3, 3), X),
    "a bias of one number": (lambda m, x: F.linear(x, m.kernel, m.kernel[0, 0].expand(4)), rand(4, 4), ROWS),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_an_expanded_weight_has_memory_that_a_state_dict_is_copied_into(name):
    function, kernel, x = EXPANDED[name]
    first, second = (prepared(Fn(function, kernel=kernel), x) for _ in range(2))
    fxq.calibrate(first, [x], progress=False)
    second.load_state_dict(first.state_dict())
    assert torch.equal(fxq.convert(second)(x), fxq.convert(first)(x))


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


IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
AS_GOOD = 0.5
"""dB: the same sums, rounded on ranges that differ in the last bit."""


def give_values(model: nn.Module) -> nn.Module:
    """The same weights and statistics for all models of one structure, whatever their norms are."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            scale = module.weight[0].numel() ** -0.5
            for tensor in module.parameters():
                tensor.data = torch.randn(tensor.shape, generator=generator) * scale
        elif isinstance(module, (nn.BatchNorm2d, FrozenBatchNorm2d)):
            for tensor, low in zip(
                (module.weight, module.bias, module.running_mean, module.running_var),
                (0.5, -0.5, -0.5, 0.5),
                strict=True,
            ):
                tensor.data.copy_(torch.rand(len(tensor), generator=generator) + low)
    return model.eval()


class Block(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, padding=1), norm(8)
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), norm(8)
        self.last, self.last_norm = nn.Conv2d(8, 4, 1), norm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(x)).relu()
        x = F.relu(self.norm(self.conv(x)) + x)
        return self.last_norm(self.last(x))


def test_a_frozen_batch_norm_is_folded_as_a_batch_norm_is():
    found = {}
    for norm in (nn.BatchNorm2d, FrozenBatchNorm2d):
        model = give_values(Block(norm))
        prepared = fxq.prepare(model, IMAGES).calibrate([IMAGES], progress=False)
        assert torch.equal(prepared(IMAGES), model(IMAGES))
        int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
        assert measure_parity(int8, simulated, (IMAGES,)).breaches == ()
        assert torch.equal(fxq.convert(prepared, to="reference")(IMAGES), simulated(IMAGES))
        found[norm] = units(prepared), sqnr(model(IMAGES), int8(IMAGES)), set(int8.state_dict())
        assert prepared.coverage().float_rows == ()
    (plain, plain_sqnr, plain_names), (frozen, frozen_sqnr, frozen_names) = found.values()
    assert frozen == plain == ["conv_bn_act", "conv_bn_add_act", "conv_bn"]
    assert frozen_sqnr > plain_sqnr - AS_GOOD
    assert frozen_names == plain_names


@pytest.mark.slow
def test_a_detectors_backbone():
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    plans = []
    for norm in (nn.BatchNorm2d, FrozenBatchNorm2d):
        model = give_values(torchvision.models.resnet18(norm_layer=norm))
        prepared = fxq.prepare(model, x)
        plans.append([(unit.pattern, sorted(unit.roles)) for unit in prepared.plan.units])
    assert plans[0] == plans[1]


def test_training_leaves_it_frozen_under_its_names():
    model = give_values(Block(FrozenBatchNorm2d)).train()
    before = copy.deepcopy(model.state_dict())
    trained = fxq.prepare_qat(model, IMAGES)
    assert set(before) <= set(trained.state_dict())
    assert {name for name, _ in trained.named_parameters()} == {name for name, _ in model.named_parameters()}
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        trained(IMAGES).square().mean().backward()
        optimizer.step()
    after = trained.state_dict()
    same = {name for name, value in before.items() if torch.equal(value, after[name])}
    assert same == {name for name in before if "norm" in name}
    int8 = fxq.convert(trained)
    assert [module for module in int8.modules() if "Affine" in type(module).__name__] == []
    assert sqnr(trained.eval()(IMAGES), int8(IMAGES)) > 30


class Scaled(nn.Module):
    """A convolution and a factor and a shift of each channel that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.scale, self.shift = nn.Parameter(torch.rand(8, 1, 1) + 0.5), nn.Parameter(torch.rand(1, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.conv(x) * self.scale + self.shift))


def test_factors_that_are_learned_learn_on():
    torch.manual_seed(0)
    model = Scaled()
    trained = fxq.prepare_qat(model.train(), IMAGES)
    assert [unit.pattern for unit in trained.preparation.plan.units] == ["conv_bn_act", "conv"]
    trained(IMAGES).square().mean().backward()
    model(IMAGES).square().mean().backward()
    own = dict(trained.named_parameters())
    for name, parameter in model.named_parameters():
        cosine = F.cosine_similarity(own[name].grad.flatten(), parameter.grad.flatten(), 0)
        assert cosine > 0.98, name
    assert own["scale"].shape == (8, 1, 1)
    before = trained(IMAGES)
    with torch.no_grad():
        own["scale"].mul_(0.8)
    assert not torch.allclose(trained(IMAGES), before, rtol=0.05)
    model.load_state_dict({name: own[name] for name in model.state_dict()})
    assert sqnr(model.eval()(IMAGES), fxq.convert(trained)(IMAGES)) > 30


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda m, x: m.b(F.relu(m.a(x) * m.s + m.t)), ["conv_bn_act", "conv"]),
        (lambda m, x: m.b(m.a(x) * m.s), ["conv_bn", "conv"]),
        (lambda m, x: m.b(m.a(x) * m.s + m.t + m.a(x)), ["conv", "conv_bn_add", "conv"]),
        (lambda m, x: m.b((y := m.a(x)) * m.s + m.t + y), ["conv", "bn", "add", "conv"]),
        (lambda m, x: m.b(m.a(x) * m.p), ["conv", "mul", "conv"]),
        (lambda m, x: m.b((y := m.a(x)) * y.mean((2, 3), keepdim=True)), ["conv", "mean", "mul", "conv"]),
    ],
    ids=["norm and act", "a factor", "a residual", "read elsewhere", "per position", "of the input"],
)
def test_units(body, expected):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
            self.s, self.t = nn.Parameter(torch.rand(1, 4, 1, 1) + 0.5), nn.Parameter(torch.rand(1, 4, 1, 1))
            self.p = nn.Parameter(torch.rand(16, 16))

        def forward(self, x: Tensor) -> Tensor:
            return body(self, x)

    torch.manual_seed(0)
    model = Net().eval()
    prepared = fxq.prepare(model, IMAGES, rounding_outputs()).calibrate([IMAGES], progress=False)
    assert units(prepared) == expected
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    assert measure_parity(int8, simulated, (IMAGES,)).breaches == ()
    with torch.no_grad():
        assert torch.equal(prepared(IMAGES), model(IMAGES))
        assert sqnr(model(IMAGES), int8(IMAGES)) > 30


def test_a_norm_alone_holds_for_one_rank():
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = FrozenBatchNorm2d(3), nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(F.relu(self.norm(x)))

    model = give_values(Alone())
    prepared = fxq.prepare(model, IMAGES).calibrate([IMAGES], progress=False)
    assert units(prepared) == ["bn_act", "conv"]
    int8 = fxq.convert(prepared)
    assert sqnr(model(IMAGES), int8(IMAGES)) > 30
    with pytest.raises(InputError, match="dimensions"):
        int8(IMAGES[0])
