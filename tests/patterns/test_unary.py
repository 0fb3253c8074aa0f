"""Functions of one tensor and operators with a number: found, on which grid, exact as a table, refused and why."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.graph.query import function_name
from fxquant.nn import QuantizedFunction, QuantizedTable
from fxquant.observers import FixedQParamsObserver
from fxquant.patterns.pattern import Bounded
from fxquant.patterns.unary import LARGEST, PRELU, UNARY
from fxquant.plan.spec import Fixed, Observed, TensorRef
from tests.outputs import rounding_outputs
from tests.sampling import one_of

CLOSE = 34
"""dB. A range of 255 steps that is filled evenly has 59 dB per rounding; steep parts of a function cost some of it."""

JUMPS = 18
"""dB, where a function jumps: values on the wrong side of the jump are wrong by all of its height."""


def two_over(x):
    return 2 / (1 + torch.sigmoid(x))


FUNCTIONS = {
    "sigmoid": (nn.Sigmoid(), torch.sigmoid, F.sigmoid, lambda x: x.sigmoid()),
    "hardsigmoid": (nn.Hardsigmoid(), F.hardsigmoid),
    "tanh": (nn.Tanh(), torch.tanh, lambda x: x.tanh()),
    "hardswish": (nn.Hardswish(inplace=True), F.hardswish),
    "silu": (nn.SiLU(), F.silu),
    "gelu": (nn.GELU(), nn.GELU(approximate="tanh"), F.gelu, lambda x: F.gelu(x, approximate="tanh")),
    "mish": (nn.Mish(), F.mish),
    "elu": (nn.ELU(0.5), F.elu, lambda x: F.elu(x, alpha=2.0)),
    "selu": (nn.SELU(), torch.selu),
    "leaky_relu": (nn.LeakyReLU(0.2), F.leaky_relu, lambda x: F.leaky_relu(x, negative_slope=0.3)),
    "softplus": (nn.Softplus(beta=2), F.softplus),
    "celu": (nn.CELU(0.5), torch.celu, lambda x: F.celu(x, alpha=2.0)),
    "softsign": (nn.Softsign(), F.softsign),
    "tanhshrink": (nn.Tanhshrink(), F.tanhshrink),
    "softshrink": (nn.Softshrink(0.1), lambda x: F.softshrink(x, lambd=0.2)),
    "hardshrink": (nn.Hardshrink(0.1), torch.hardshrink, lambda x: x.hardshrink(0.2)),
    "threshold": (nn.Threshold(0.1, -0.2), lambda x: F.threshold(x, 0.1, 0.0)),
    "logsigmoid": (nn.LogSigmoid(), F.logsigmoid),
    "rrelu": (nn.RReLU(), F.rrelu, lambda x: torch.rrelu(x, lower=0.1, upper=0.2)),
    "prelu": (nn.PReLU(init=0.3),),
    "atan": (torch.atan, lambda x: x.atan_()),
    "asinh": (torch.asinh, torch.arcsinh),
    "erf": (torch.erf, torch.special.erf),
    "erfc": (torch.erfc, lambda x: x.erfc()),
    "neg": (torch.neg, lambda x: -x),
    "abs": (torch.abs, abs),
    "square": (torch.square, lambda x: x.square()),
    "add_number": (lambda x: x + 0.5, lambda x: 2 + x, lambda x: x.add(-1)),
    "sub_number": (lambda x: x - 0.5, lambda x: x.sub(2)),
    "number_sub": (lambda x: 1 - x, lambda x: torch.rsub(x, 3)),
    "mul_number": (lambda x: -3 * x, lambda x: x * -2),
    "div_number": (lambda x: x / -4, lambda x: x.div(-3)),
    "pow_number": (lambda x: x**2, lambda x: x.pow(3)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("pattern", "spelling"),
    [each for name, all_of in FUNCTIONS.items() for each in one_of(3, [(name, spelling) for spelling in all_of])],
)
def test_every_spelling_is_one_table(forms_behind_conv, pattern, spelling):
    forms = forms_behind_conv(spelling)
    assert forms.units == ["conv", pattern]
    assert isinstance(forms.int8.get_submodule(forms.prepared.plan.units[-1].root), QuantizedTable) or isinstance(
        forms.int8.reader, QuantizedTable
    )
    assert torch.equal(forms.got, forms.simulated)
    assert forms.sqnr > (JUMPS if pattern in ("hardshrink", "threshold") else CLOSE)


def test_every_function_is_tried():
    assert {pattern.name for pattern in (*PRELU, *UNARY)} == {*FUNCTIONS, "number_div"}


def test_a_number_over_a_tensor(forms_behind_conv):
    forms = forms_behind_conv(two_over)
    assert forms.units == ["conv", "sigmoid", "add_number", "number_div"]
    assert forms.sqnr > CLOSE


@pytest.mark.parametrize(
    ("function", "scale", "zero_point"),
    [(torch.sigmoid, 1 / 256, 0), (F.hardsigmoid, 1 / 256, 0), (torch.tanh, 2 / 256, 128)],
)
def test_bounded_functions_have_a_grid_that_no_data_changes(plan_behind_conv, function, scale, zero_point):
    plan = plan_behind_conv(function)
    policy = plan.policies[plan.units[-1].roles["y"]]
    assert isinstance(policy, Fixed)
    assert (policy.qparams.scale.item(), policy.qparams.zero_point.item()) == (scale, zero_point)
    assert {p.name for p in UNARY if isinstance(p.output, Bounded)} == {"sigmoid", "hardsigmoid", "tanh"}


def test_a_fixed_grid_flows_through_what_keeps_it_and_is_requantized_for_what_does_not(forms_behind_conv):
    forms = forms_behind_conv(lambda y: torch.cat([F.max_pool2d(torch.tanh(y), 2), F.relu(F.max_pool2d(y, 2))], 1))
    plan = forms.prepared.plan
    assert forms.units == ["conv", "tanh", "max_pool2d", "max_pool2d", "relu", "cat"]
    assert plan.qparams_owner(TensorRef("max_pool2d")) == TensorRef("tanh")
    assert isinstance(plan.policies[TensorRef("tanh")], Fixed)
    assert isinstance(plan.policies[TensorRef("conv")], Observed)  # tanh reads it, too
    assert "tanh" not in forms.prepared.observers
    assert forms.sqnr > CLOSE


def test_the_configuration_may_name_another_fixed_grid():
    wider = FixedQParamsObserver.with_args(scale=1 / 128, zero_point=0, dtype=torch.uint8)
    rules = fxq.get_default_qconfig_mapping()
    rules.set_object_type(torch.sigmoid, fxq.QConfig(wider, rules.global_qconfig.weight, output=wider))
    x = torch.rand(2, 4)
    prepared = fxq.prepare(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()).eval(), x, rules).calibrate([x], progress=False)
    plan = fxq.convert(prepared).quant_plan
    assert plan.qparams[plan.units[-1].roles["y"]].scale.item() == 1 / 128


def test_calibration_and_int8_state_travel(forms_behind_conv):
    forms = forms_behind_conv(lambda x: torch.sigmoid(x) * F.gelu(1 - x))
    x = torch.linspace(-1, 1, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(forms.int8)(x), forms.got)
        tables = [module for module in forms.int8.modules() if isinstance(module, QuantizedTable)]
        for table in tables:
            again = pickle.loads(pickle.dumps(table))
            q = torch.arange(256, dtype=torch.int32).to(torch.uint8)
            assert torch.equal(again(q), table(q))
        shell = fxq.convert(
            fxq.prepare(copy.deepcopy(forms.prepared.graph_module), x, rounding_outputs()), allow_uncalibrated=True
        )
        shell.load_state_dict(forms.int8.state_dict())
        assert torch.equal(shell(x), forms.got)
    assert len(tables) == 3


@pytest.mark.parametrize(
    ("reader", "reason"),
    [
        (lambda x: F.rrelu(x, training=True), "it draws its slopes even in evaluation mode (training=True)"),
        (lambda x: x**0.5, "only squares and cubes are smooth enough between two steps, not the power of 0.5"),
        (lambda x: torch.add(x, 2, alpha=3), "alpha=3: only plain sums and differences have an integer form"),
        (lambda x: torch.sub(x, 2, alpha=3), "alpha=3: only plain sums and differences have an integer form"),
        (
            lambda x: torch.div(x, 2, rounding_mode="floor"),
            "rounding_mode='floor': it jumps, and not where quantized values do",
        ),
        (
            lambda x: F.leaky_relu(x, x.size(2) / 10),
            "'truediv', which it takes besides, is computed at run time",
        ),
    ],
)
def test_what_a_table_cannot_be_stays_float_and_says_why(plan_behind_conv, reader, reason):
    plan = plan_behind_conv(reader)
    assert [unit.pattern for unit in plan.units] == ["conv"]
    assert [refusal.reason for refusal in plan.refusals] == [reason]


@pytest.mark.parametrize("pattern", [*PRELU, *UNARY], ids=lambda pattern: pattern.name)
def test_a_row_captures_what_lowering_needs(pattern):
    assert set(pattern.root.captures) >= {"x", "function"}, function_name(pattern.root.targets[0])


NARROW = torch.linspace(-1, 1, 64).reshape(16, 4)
FAR = torch.tensor([[8.0, -8.0, 0.3, 20.0], [-0.7, 1e4, -1e4, 2.0]])


class Beside(nn.Module):
    """A layer and a bounded function read the same input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) * torch.sigmoid(x)


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x.clone())


def _forms(model):
    prepared = fxq.prepare(model.eval(), NARROW, rounding_outputs()).calibrate([NARROW], progress=False)
    int8 = fxq.convert(prepared, check=[FAR])
    assert not int8.parity.breaches
    simulated = [fxq.convert(prepared, to=form) for form in ("fake_quant", "reference")]
    before = FAR.clone()
    with torch.no_grad():
        got, *others = (form(FAR) for form in (int8, *simulated))
    assert torch.equal(before, FAR)
    assert all(torch.equal(got, other) for other in others)
    return int8, got


ON_FLOATS = {
    "sigmoid": (torch.sigmoid, (nn.Sigmoid(), F.sigmoid, lambda x: x.sigmoid_())),
    "tanh": (torch.tanh, (nn.Tanh(), torch.tanh)),
    "hardsigmoid": (
        F.hardsigmoid,
        (nn.Hardsigmoid(inplace=True), lambda x: F.hardsigmoid(x, True), lambda x: F.hardsigmoid(x, inplace=False)),
    ),
}


@pytest.mark.parametrize(("name", "spelling"), [(name, s) for name, (_, all_of) in ON_FLOATS.items() for s in all_of])
def test_a_bounded_function_of_floats_is_not_clipped_to_what_calibration_saw(name, spelling):
    int8, got = _forms(Called(spelling))
    step = 2 / 256 if name == "tanh" else 1 / 256
    limits = (-1, 1 - step) if name == "tanh" else (0, 1 - step)
    assert torch.equal(got, ((ON_FLOATS[name][0](FAR) / step).round() * step).clamp(*limits))
    assert any(isinstance(module, QuantizedFunction) for module in int8.modules())


@pytest.mark.parametrize("before", [nn.Flatten(), nn.ReLU(), nn.Unflatten(1, (2, 2))])
def test_what_only_moves_or_clamps_floats_before_it_stays_float(before):
    _, got = _forms(nn.Sequential(before, nn.Sigmoid()))
    assert (got - torch.sigmoid(before(FAR))).abs().max() <= 1 / 256 + 1e-6


def test_an_input_that_a_layer_reads_too_is_float_for_the_function():
    int8, _ = _forms(Beside())
    functions = [module for module in int8.modules() if isinstance(module, QuantizedFunction)]
    assert len(functions) == 1
    assert torch.equal(functions[0](FAR).float(), (torch.sigmoid(FAR) * 256).round().clamp(0, 255))


def test_moves_that_another_layer_needs_in_integers_give_these_to_the_function():
    model = Beside()
    int8, _ = _forms(nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Flatten(1), model))
    assert not any(isinstance(module, QuantizedFunction) for module in int8.modules())


def test_integers_of_a_layer_go_through_the_table():
    int8, _ = _forms(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()))
    assert isinstance(int8.get_submodule("1"), QuantizedTable)
    assert not any(isinstance(module, QuantizedFunction) for module in int8.modules())


CLOSE_RESCALE = 30.0
"""dB that 8 bits reach behind one layer."""


def test_the_integers_are_those_of_the_input(forms_behind_conv):
    forms = forms_behind_conv(lambda x: (x * 3).flip(1))
    assert forms.units == ["conv", "rescale", "flip"]
    assert not [module for name, module in forms.int8.named_modules() if "mul" in name]
    qparams = forms.int8.quant_plan.qparams
    by_pattern = {unit.pattern: qparams[unit.roles["y"]] for unit in forms.int8.quant_plan.units}
    assert torch.equal(by_pattern["rescale"].scale, by_pattern["conv"].scale * 3)
    assert torch.equal(by_pattern["flip"].scale, by_pattern["rescale"].scale)
    assert torch.equal(by_pattern["rescale"].zero_point, by_pattern["conv"].zero_point)
    torch.testing.assert_close(forms.got, forms.simulated)
    assert forms.sqnr > CLOSE_RESCALE


@pytest.mark.parametrize("factor", [0.0, -2.0, 2 * LARGEST, 0.5 / LARGEST, float("inf")])
def test_other_factors_make_other_integers(plan_behind_conv, factor):
    assert "rescale" not in [unit.pattern for unit in plan_behind_conv(lambda x: x * factor).units]


class Net(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, self.first(x))


BODIES = {
    "a value and its multiple": lambda m, y: (y, y * 2, y / 4),
    "read in float": lambda m, y: m.last(y * 2) + F.softmax(y * 2, -1) + F.softmax(y, -1),
    "concatenated": lambda m, y: m.last(torch.cat([y, y * 3])),
    "clamped": lambda m, y: m.last(F.relu6(y * 3)),
    "twice": lambda m, y: m.last(y * 3 / 2 * 0.1),
    "added": lambda m, y: m.last(y * 3 + y),
}


def decibels(expected: Tensor, got: Tensor) -> float:
    return float(10 * torch.log10(expected.square().mean() / (expected - got).square().mean()))


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_whatever_reads_it(body):
    torch.manual_seed(0)
    x, model = torch.randn(64, 6), Net(body).eval()
    prepared = fxq.prepare(model, x, rounding_outputs()).calibrate([x], progress=False)
    assert "rescale" in [unit.pattern for unit in prepared.plan.units]
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    with torch.no_grad():
        outputs = [y if isinstance(y, tuple) else (y,) for y in (model(x), int8(x), simulated(x))]
    for expected, got, simulation in zip(*outputs, strict=True):
        assert decibels(expected, got) > CLOSE_RESCALE
        assert decibels(simulation, got) > CLOSE_RESCALE + 20
    fxq.convert(prepared, check=x)


def test_a_value_and_its_multiple_in_one_concatenation_keep_the_values_grid():
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    prepared = fxq.prepare(Net(BODIES["concatenated"]).eval(), x, rounding_outputs()).calibrate([x], progress=False)
    qparams = fxq.convert(prepared).quant_plan.qparams
    cat, first, times = (qparams[TensorRef(name)] for name in ("cat", "first", "mul"))
    assert torch.equal(times.scale, first.scale * 3)
    torch.testing.assert_close(first.scale * 3, cat.scale)  # so first itself loses nothing


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_training_rounds_where_conversion_does(body):
    torch.manual_seed(0)
    x, model = torch.randn(64, 6), Net(body)
    model.last.requires_grad_(False)  # one of them has no use for it
    trained = fxq.prepare_qat(model.train(), x)
    trained(x)
    int8 = fxq.convert(trained.eval())
    with torch.no_grad():
        expected, got = (y if isinstance(y, tuple) else (y,) for y in (trained(x), int8(x)))
    for one, other in zip(expected, got, strict=True):
        assert decibels(one, other) > CLOSE_RESCALE
