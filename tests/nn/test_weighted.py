"""Modules keep their weight in one order, and show it in the one that users know."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.kernels.library import available_isas
from fxquant.nn import conv as conv_module
from fxquant.nn.batch_norm import QuantizedBatchNorm
from fxquant.nn.conv import QuantizedConv
from fxquant.nn.conv_transpose import QuantizedConvTranspose
from fxquant.nn.dynamic_linear import QuantizedDynamicLinear
from fxquant.nn.linear import QuantizedLinear
from fxquant.nn.weighted import WeightedModule
from fxquant.plan.spec import Dynamic, QParams, QScheme

needs_native = pytest.mark.skipif(not available_isas(), reason="no kernel packs weights")

X = QParams(QScheme(signed=False), torch.tensor([0.02]), torch.tensor([100], dtype=torch.int32))
Y = QParams(QScheme(signed=False), torch.tensor([0.03]), torch.tensor([120], dtype=torch.int32))
WEIGHT = QParams(QScheme(symmetric=True), torch.tensor([0.005]), torch.tensor([0], dtype=torch.int32))

Make = Callable[[], WeightedModule]


def conv(float_conv: nn.Module) -> Make:
    return lambda: QuantizedConv(float_conv, x=X, weight=WEIGHT, y=Y)


def transposed(float_conv: nn.Module) -> Make:
    return lambda: QuantizedConvTranspose(float_conv, x=X, weight=WEIGHT, y=Y)


LINEAR = nn.Linear(19, 21)
KINDS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "conv": (conv(nn.Conv2d(19, 21, 3)), (2, 19, 7, 6)),
    "conv1d": (conv(nn.Conv1d(16, 16, 5)), (2, 16, 9)),
    "few channels": (conv(nn.Conv2d(3, 16, (3, 5), bias=False)), (2, 3, 9, 8)),
    "grouped": (conv(nn.Conv2d(12, 24, 3, groups=4)), (2, 12, 5, 5)),
    "depthwise": (conv(nn.Conv2d(21, 21, 3, groups=21)), (2, 21, 5, 5)),
    "transposed": (transposed(nn.ConvTranspose2d(6, 8, (4, 3), stride=(2, 3))), (2, 6, 5, 4)),
    "transposed, places that nothing reaches": (transposed(nn.ConvTranspose1d(6, 8, 2, stride=3)), (2, 6, 5)),
    "transposed, dilated groups": (transposed(nn.ConvTranspose1d(6, 8, 4, 4, groups=2, dilation=2)), (2, 6, 5)),
    "linear": (lambda: QuantizedLinear(LINEAR, x=X, weight=WEIGHT, y=Y), (5, 19)),
    "batch norm": (lambda: QuantizedBatchNorm(nn.BatchNorm2d(7).eval(), x=X, y=Y), (2, 7, 3, 3)),
    "dynamic linear": (lambda: QuantizedDynamicLinear(LINEAR, x=Dynamic(QScheme()), weight=WEIGHT), (5, 19)),
}


class Case:
    """A module, an input, the result and the weight before anything was packed."""

    def __init__(self, kind: str) -> None:
        make, shape = KINDS[kind]
        self.module = make()
        x = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))
        self.x = x.float() if isinstance(self.module, QuantizedDynamicLinear) else x.to(torch.uint8)
        self.weight = self.module.weight.clone()
        self.y = self.module.reference(self.x)

    @property
    def packed(self) -> bool:
        return "weight" not in self.module._buffers

    def check(self, module: WeightedModule) -> None:
        assert torch.equal(module(self.x), self.y)


@pytest.fixture(params=[pytest.param(kind, marks=needs_native) for kind in KINDS])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def test_the_first_call_leaves_the_packed_order_alone(case: Case) -> None:
    module = case.module
    before = weakref.ref(module.weight)
    assert before() is module.weight
    names = list(module.state_dict())

    case.check(module)

    assert before() is None
    assert "weight" not in dict(module.named_buffers())
    state = module.state_dict()
    assert list(state) == names
    assert torch.equal(state["weight"], case.weight)
    assert case.packed
    repr(module)
    module.reference(case.x)
    module.state_dict()
    assert case.packed  # none of them brings it back


def test_reading_the_weight_brings_it_back(case: Case) -> None:
    module = case.module
    case.check(module)

    weight = module.weight

    assert weight is module.weight
    assert torch.equal(weight, case.weight)
    assert weight.is_contiguous()
    weight.neg_()
    case.check(module)
    module.invalidate()
    assert torch.equal(module.weight, case.weight.neg())
    assert torch.equal(module(case.x), module.reference(case.x))
    assert case.packed
    assert torch.equal(module.weight, case.weight.neg())


def test_a_weight_that_is_set_counts_after_forgetting(case: Case) -> None:
    module = case.module
    case.check(module)

    module.weight = case.weight.neg()
    module.invalidate()

    assert torch.equal(module(case.x), module.reference(case.x))
    assert torch.equal(module.state_dict()["weight"], case.weight.neg())


@pytest.mark.parametrize("assign", [False, True])
def test_states_are_loaded_into_packed_modules(case: Case, assign: bool) -> None:
    module = case.module
    case.check(module)
    other = copy.deepcopy(module)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    state["weight"].neg_()

    other.load_state_dict(state, assign=assign)

    assert torch.equal(other(case.x), other.reference(case.x))
    assert torch.equal(other.weight, case.weight.neg())
    case.check(module)
    incomplete = {name: value for name, value in state.items() if name != "weight"}
    module.load_state_dict(incomplete, strict=False)
    case.check(module)


def by_torch_save(module: WeightedModule) -> WeightedModule:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda module: pickle.loads(pickle.dumps(module)), by_torch_save]
)
def test_copies_hold_the_weight_as_it_was(case: Case, copied: Callable[[WeightedModule], WeightedModule]) -> None:
    case.check(case.module)

    other = copied(case.module)

    assert case.packed
    assert torch.equal(other._buffers["weight"], case.weight)
    case.check(other)
    case.check(case.module)
    other.weight.zero_()
    assert torch.equal(case.module.weight, case.weight)


def test_moves_and_casts_leave_the_weight_as_it_is(case: Case) -> None:
    case.check(case.module)
    for move in (lambda m: m.to("cpu"), lambda m: m.double(), lambda m: m.float()):
        move(case.module)
        case.check(case.module)
    assert case.module.to("meta").weight.device.type == "meta"


def test_what_inference_mode_made_can_be_written_to_outside(case: Case) -> None:
    with torch.inference_mode():
        case.check(case.module)
        state = {name: value.clone() for name, value in case.module.state_dict().items()}

    case.module.weight.neg_()
    case.module.load_state_dict(state)

    case.check(case.module)


def test_threads_may_save_while_others_call(case: Case) -> None:
    def use(i: int) -> bool:
        if i % 2:
            return torch.equal(case.module.state_dict()["weight"], case.weight)
        return torch.equal(case.module(case.x), case.y)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(40)))


def test_a_module_that_nothing_packs_keeps_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("conv")
    monkeypatch.setattr(conv_module, "native_refusal", lambda *_: "not today")

    case.check(case.module)

    assert not case.packed


def test_the_exported_program_and_the_compiled_module_stay_right(case: Case) -> None:
    case.check(case.module)

    exported = torch.export.export(case.module, (case.x,)).module() if not case.x.is_floating_point() else case.module

    assert torch.equal(exported(case.x), case.y)
    assert torch.equal(torch.compile(case.module, backend="eager")(case.x), case.y)
    assert case.packed


class Levels(nn.Module):
    """One head for three levels, as in detectors, and two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 8), nn.Linear(8, 8)
        self.two.weight = self.one.weight

    def forward(self, x):
        levels = [self.head(level).mean((2, 3)) for level in (x, 2 * x, x[..., ::2])]
        return self.two(torch.relu(self.one(levels[0] + levels[1]))) + self.one(levels[2])


def packed_at(model: nn.Module) -> dict[str, int]:
    """Where the packed weight of each layer lies."""
    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, WeightedModule)]
    return {name: each.packed().unpacked.__self__.values.data_ptr() for name, each in layers}


@needs_native
@pytest.mark.parametrize("form", ["converted", "loaded", "copied", "pickled"])
def test_layers_of_one_weight_keep_it_once(form):
    torch.manual_seed(0)
    x = torch.rand(2, 3, 6, 6)
    quantizer = fxq.calibrate(fxq.prepare(Levels().eval(), x), [x], progress=False)
    model = fxq.convert(quantizer)
    expected = model(x)
    if form == "loaded":
        state, model = model.state_dict(), fxq.convert(fxq.prepare(Levels().eval(), x), allow_uncalibrated=True)
        model.load_state_dict(state)
    elif form == "copied":
        model = copy.deepcopy(model)
    elif form == "pickled":
        model = pickle.loads(pickle.dumps(model))
    places = packed_at(model)
    assert len(places) == 6
    assert len(set(places.values())) == 2
    for _ in range(3):
        assert torch.equal(model(x), expected)
    name = next(name for name in places if name.startswith("head"))
    layer = model.get_submodule(name)
    layer.weight.add_(1)  # reaches this layer alone
    layer.invalidate()
    model(x)
    assert len(set(packed_at(model).values())) == 3
