"""What annotate and share_qparams decide, as tables: model -> units, refusals with their reasons, qparams."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import DuplicateNameError, SpecError
from fxquant.observers import HistogramObserver, MinMaxObserver, MovingAverageMinMaxObserver, PlaceholderObserver
from fxquant.passes.qconfig_rules import own_targets
from fxquant.patterns import Pattern, op, tensor
from fxquant.patterns.floats import GIVES_INDICES, STEEP
from fxquant.plan.spec import Observed, SharedWith, TensorRef
from tests.outputs import rounding_outputs


class Lambda(nn.Module):
    """A model whose forward is a function of (self, x)."""

    def __init__(self, function, **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def plan(model: nn.Module, x: Tensor | None = None, qconfig=None, **options):
    example = torch.rand(2, 3, 8, 8) if x is None else x
    return fxq.prepare(model.eval(), example, qconfig or rounding_outputs(), **options).plan


def conv(channels_in: int = 3, channels_out: int = 3) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, padding=1)


def bn() -> nn.BatchNorm2d:
    return nn.BatchNorm2d(3)


IMAGE_MODELS = {
    "conv": (Lambda(lambda m, x: m.c(x), c=conv()), ["conv"]),
    "conv, relu": (Lambda(lambda m, x: m.c(x).relu(), c=conv()), ["conv_act"]),
    "conv, bn": (Lambda(lambda m, x: m.b(m.c(x)), c=conv(), b=bn()), ["conv_bn"]),
    "conv, bn, relu in place": (
        Lambda(lambda m, x: m.r(m.b(m.c(x))), c=conv(), b=bn(), r=nn.ReLU(inplace=True)),
        ["conv_bn_act"],
    ),
    "conv, bn, relu6": (Lambda(lambda m, x: F.relu6(m.b(m.c(x))), c=conv(), b=bn()), ["conv_bn_act"]),
    "conv, hardtanh": (Lambda(lambda m, x: F.hardtanh(m.c(x), -2, 2), c=conv()), ["conv_act"]),
    "residual behind conv": (Lambda(lambda m, x: m.b(m.c(x)) + x, c=conv(), b=bn()), ["conv_bn_add"]),
    "residual before conv": (Lambda(lambda m, x: torch.relu(x + m.c(x)), c=conv()), ["conv_add_act"]),
    "residual in place": (Lambda(lambda m, x: _iadd(m.c(x), x), c=conv()), ["conv_add"]),
    "two convs added": (
        Lambda(lambda m, x: m.c(x) + m.d(x), c=conv(), d=conv()),
        ["conv", "conv_add"],
    ),
    "conv read twice": (Lambda(lambda m, x: m.b(y := m.c(x)) + y, c=conv(), b=bn()), ["conv", "bn", "add"]),
    "conv added to itself": (Lambda(lambda m, x: (y := m.c(x)) + y, c=conv()), ["conv", "add"]),
    "mul, cat": (
        Lambda(lambda m, x: torch.cat([m.c(x) * x, x], dim=1), c=conv()),
        ["conv", "mul", "cat"],
    ),
    "pools": (
        Lambda(lambda m, x: F.adaptive_avg_pool2d(F.avg_pool2d(F.max_pool2d(m.c(x), 2), 2), 1).mean((2, 3)), c=conv()),
        ["conv", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "mean"],
    ),
    "moves": (
        Lambda(lambda m, x: m.i(m.d(m.c(x))).flatten(1).view(2, -1), c=conv(), d=nn.Dropout(), i=nn.Identity()),
        ["conv", "flatten", "reshape"],
    ),
    "relu alone, behind a max-pool": (
        Lambda(lambda m, x: F.relu(F.max_pool2d(m.c(x), 2)), c=conv()),
        ["conv", "max_pool2d", "relu"],
    ),
}


def _iadd(a: Tensor, b: Tensor) -> Tensor:
    a += b
    return a


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_units(name):
    model, expected = IMAGE_MODELS[name]
    assert [unit.pattern for unit in plan(model).units] == expected


def test_linear_and_clamp_are_one_unit():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert [unit.pattern for unit in plan(model, torch.rand(2, 4)).units] == ["linear_act", "linear"]


REJECTIONS = {
    "number": (Lambda(lambda m, x: m.c(x) + x.size(1), c=conv()), "add", "its operand 'b' is a number, not a tensor"),
    "no pattern": (
        Lambda(lambda m, x: torch.nextafter(m.c(x), x), c=conv()),
        "nextafter",
        "no pattern knows this operator",
    ),
    "no integer form": (
        Lambda(lambda m, x: torch.sin(m.c(x)), c=conv()),
        "sin",
        STEEP,
    ),
    "alpha": (
        Lambda(lambda m, x: torch.add(m.c(x), x, alpha=2), c=conv()),
        "add",
        "alpha=2: only a plain sum has an integer form",
    ),
    "integer operand": (
        Lambda(lambda m, x: m.c(x) * (x > 0.5).long(), c=conv()),
        "mul",
        "its operand 'b' is a tensor of int64",
    ),
    "no running statistics": (
        Lambda(lambda m, x: m.b(m.c(x)), c=conv(), b=nn.BatchNorm2d(3, track_running_stats=False)),
        "b",
        "batch norm keeps no running statistics (track_running_stats=False)",
    ),
    "mean in another precision": (
        Lambda(lambda m, x: m.c(x).mean(1, dtype=torch.float64), c=conv()),
        "mean",
        "dtype is given: the mean is wanted in another precision",
    ),
    "several outputs, of which one is used": (
        Lambda(lambda m, x: m.c(x).topk(2, 1)[0], c=conv()),
        "topk",
        GIVES_INDICES,
    ),
    "a module with several outputs": (
        Lambda(lambda m, x: m.pool(m.c(x))[0], c=conv(), pool=nn.MaxPool2d(2, return_indices=True)),
        "pool",
        GIVES_INDICES,
    ),
}


@pytest.mark.parametrize("name", REJECTIONS)
def test_rejections_say_why(name):
    model, node, reason = REJECTIONS[name]
    found = plan(model)
    assert [(r.node, r.reason, r.excused) for r in found.refusals] == [(node, reason, False)]
    assert [unit.pattern for unit in found.units] == ["conv"]


def test_what_the_configuration_leaves_out_is_excused():
    model = nn.Sequential(conv(), nn.ReLU(), conv())
    rules = fxq.get_default_qconfig_mapping().set_module_name("2", None)
    found = plan(model, qconfig=rules)
    assert [unit.pattern for unit in found.units] == ["conv_act"]
    (refusal,) = found.refusals
    assert refusal.excused
    assert refusal.reason == "the configuration leaves it in float: set_module_name('2')"


IN_FLOAT = "the configuration leaves it in float"


def test_a_rule_for_a_block_is_one_for_all_in_it():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = conv()

        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(self.c(x))

    model = nn.Sequential(conv(), Block(), conv())
    mapping = fxq.get_default_qconfig_mapping()
    found = plan(model, qconfig=mapping.set_object_type(Block, None))
    assert [unit.root for unit in found.units] == ["_0", "_2"]
    assert {item.reason for item in found.refusals} == {"the configuration leaves it in float: set_object_type(Block)"}
    found = plan(model, qconfig=mapping.set_object_type(nn.Conv2d, fxq.get_default_qconfig()))
    assert [unit.root for unit in found.units] == ["_0", "_1_c", "_2"]  # the more exact type wins


def test_an_activation_left_in_float_is_not_fused():
    model = nn.Sequential(conv(), nn.ReLU())
    found = plan(model, qconfig=fxq.get_default_qconfig_mapping().set_object_type(nn.ReLU, None))
    assert [unit.pattern for unit in found.units] == ["conv"]
    assert [r.node for r in found.refusals] == ["_1"]


def test_leaf_modules_stay_float_by_request():
    model = nn.Sequential(conv(), conv())
    found = plan(model, leaf_modules=("1",))
    assert [(r.node, r.reason, r.excused) for r in found.refusals] == [
        ("_1", "kept whole and in float by leaf_modules", True)
    ]


WIDE = fxq.QConfig(activation=MinMaxObserver.with_args(bits=16), weight=fxq.PerChannelMinMaxObserver)


def test_the_backend_refuses_what_it_cannot_store():
    with pytest.raises(fxq.FxQuantError) as caught:
        plan(nn.Sequential(conv()), qconfig=WIDE)
    assert "backend 'cpu': 16 bit activations do not fit a byte" in str(caught.value)


def test_a_placeholder_observer_leaves_in_float():
    rules = fxq.get_default_qconfig_mapping().set_module_name(
        "0", fxq.QConfig(activation=PlaceholderObserver, weight=PlaceholderObserver)
    )
    found = plan(nn.Sequential(conv(), conv()), qconfig=rules)
    assert [(r.node, r.excused) for r in found.refusals] == [("_0", True)]


def test_a_move_before_a_quantized_layer_is_quantized():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    found = plan(model)
    assert [unit.pattern for unit in found.units] == ["flatten", "linear"]
    assert found.qparams_owner(found.units[0].roles["y"]) == TensorRef("input_1")
    assert found.policies[TensorRef("input_1")] == Observed(_default_activation())


def _default_activation():
    return fxq.get_default_qconfig().activation


def test_picked_and_clamped_values_share_their_inputs_grid():
    found = plan(Lambda(lambda m, x: F.relu(F.max_pool2d(m.c(x), 2)), c=conv()))
    assert found.policies[TensorRef("max_pool2d")] == SharedWith(TensorRef("c"))
    assert found.policies[TensorRef("relu")] == SharedWith(TensorRef("max_pool2d"))
    assert found.qparams_owner(TensorRef("relu")) == TensorRef("c")


def test_the_input_observer_sees_what_no_unit_makes():
    found = plan(Lambda(lambda m, x: m.c(torch.sin(m.d(x))), c=conv(), d=conv()))
    assert TensorRef("d") not in found.policies  # only a float operator reads it: nothing to observe
    assert found.policies[TensorRef("sin")] == Observed(_default_activation())
    quantizer = fxq.Quantizer(
        Lambda(lambda m, x: m.c(torch.sin(y := m.d(x)) + y), c=conv(), d=conv()).eval(),
        (torch.rand(1, 3, 8, 8),),
        input_observer=MovingAverageMinMaxObserver,
    )
    assert isinstance(quantizer.observers["sin"], MovingAverageMinMaxObserver)
    assert isinstance(quantizer.observers["x"], MovingAverageMinMaxObserver)
    assert isinstance(quantizer.observers["d"], HistogramObserver)


def test_one_module_at_two_places_is_two_units_with_two_grids():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = conv(), bn()

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(self.conv(self.conv(x)))

    found = plan(Net())
    assert [unit.pattern for unit in found.units] == ["conv", "conv_bn"]
    assert found.units[0].roles["weight"] != found.units[1].roles["weight"]


def test_planning_leaves_the_graph_alone():
    prepared = fxq.prepare(IMAGE_MODELS["pools"][0].eval(), torch.rand(2, 3, 8, 8))
    changed = {snapshot.name: snapshot.changed for snapshot in prepared.snapshots}
    assert changed["annotate"] is False
    assert changed["share_qparams"] is False


def test_moves_of_float_values_are_left_alone():
    found = plan(Lambda(lambda m, x: torch.sin(m.c(x)).flatten(2), c=conv()))
    assert [unit.pattern for unit in found.units] == ["conv"]
    flatten = next(refusal for refusal in found.refusals if refusal.node == "flatten")
    assert flatten.excused
    assert flatten.reason == "neither what makes its input nor what reads its output is quantized"


def test_a_parametrized_layer_is_quantized_with_the_weight_that_it_computes():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2)).eval()
    x = torch.rand(8, 4)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    assert torch.equal(prepared(x), model(x))
    assert [unit.nodes for unit in prepared.plan.units] == [("_0",), ("_1",)]
    assert nn.utils.parametrize.is_parametrized(model[0])
    layer = fxq.convert(prepared).get_submodule("0")
    stored = layer.weight * layer.weight_scale.reshape(-1, 1)
    assert torch.all((stored - model[0].weight).abs() <= 0.51 * layer.weight_scale.reshape(-1, 1))


def test_a_clamp_with_computed_bounds_is_not_fused():
    found = plan(Lambda(lambda m, x: F.hardtanh(m.c(x), -1, x.size(2)), c=conv()))
    assert [unit.pattern for unit in found.units] == ["conv"]
    assert [r.reason for r in found.refusals] == ["its bounds are computed at run time"]


def test_two_patterns_of_one_name_are_refused():
    with pytest.raises(DuplicateNameError) as caught:
        fxq.prepare(nn.Sequential(conv()).eval(), torch.rand(1, 3, 8, 8), patterns=fxq.DEFAULT_PATTERNS * 2)
    assert str(caught.value).startswith("two patterns have the same name\n  got:      conv_bn_add_act, ")


def test_only_patterns_that_the_package_lacks_are_the_users_own():
    """A quantizer that was unpickled has copies of those of the package."""
    own = Pattern("fft", root=op(torch.fft.fft)(tensor("x")))
    copies = tuple(replace(pattern) for pattern in fxq.DEFAULT_PATTERNS)
    for given in (fxq.DEFAULT_PATTERNS, copies):
        assert own_targets(SimpleNamespace(patterns=given)) == set()
        assert own_targets(SimpleNamespace(patterns=(*given, own))) == {torch.fft.fft}


def test_a_clamp_between_float_values_is_left_alone():
    found = plan(Lambda(lambda m, x: torch.sin(F.relu(torch.sin(m.c(x)))), c=conv()))
    assert "relu" not in [unit.pattern for unit in found.units]
    assert next(r for r in found.refusals if r.node == "relu").excused


def test_what_the_model_returns_may_have_an_observer_of_its_own():
    weight = fxq.get_default_qconfig().weight
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
    qconfig = fxq.QConfig(fxq.HistogramObserver, weight, output=MinMaxObserver)
    observers = fxq.prepare(model, torch.randn(2, 3), qconfig).observers
    assert {name: type(observer).__name__ for name, observer in observers.items() if "weight" not in name} == {
        "_2": "MinMaxObserver",
        "_0": "HistogramObserver",
        "input_1": "HistogramObserver",
    }
    with pytest.raises(SpecError, match="what the model returns has the scheme of other activations"):
        fxq.QConfig(fxq.HistogramObserver, weight, output=MinMaxObserver.with_args(bits=4))
