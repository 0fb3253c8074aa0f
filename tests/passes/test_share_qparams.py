"""Grids of what concatenations and stacks join: shared where nothing else needs another one, else kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.measure.noise import sqnr
from fxquant.nn import QuantizedCat
from fxquant.observers.defaults import default_per_channel_weight_observer
from fxquant.plan.spec import Observed, SharedWith, TensorRef
from tests.sampling import one_of

pytestmark = pytest.mark.filterwarnings("ignore:values of very different size are joined:fxquant.errors.FxQuantWarning")
"""Which is what these models do; the warning has tests of its own, in tests/calibration/test_joined_ranges.py."""

FINE = 32.0
"""dB of a layer or two of 8 bits on noise: 34 to 37. A bit less costs 6."""
TRAINED = 1.0
"""dB by which grids of moving averages may be worse than those of histograms, on one and the same batch."""
SIMULATED = 55.0
"""dB between int8 and training in evaluation mode, where single values may lie a step apart."""


class Joining(nn.Module):
    """Two layers, the results of one ``ratio`` times as large, and readers of one and of both of them."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], ratio: float = 100.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            channels = {"small": 3, "large": 3, "one": 8, "both": 16, "other": 16, "three": 24, "image": 11}
            layers = {name: nn.Conv2d(count, 8, 3) for name, count in channels.items()}
        for name in sorted({*channels} & {*forward.__code__.co_names}):
            self.add_module(name, layers[name])
        self.function = forward
        with torch.no_grad():
            layers["large"].weight *= ratio
            layers["large"].bias *= ratio

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def data(*shape: int) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return torch.randn(*(shape or (8, 3, 12, 12)))


def calibrated(model: nn.Module, x: Tensor) -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(model.eval(), x), [x], progress=False)


def tensors(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def with_maximum(m: Any, x: Tensor) -> Any:
    y = m.small(x)
    return m.both(torch.cat([F.max_pool2d(y, 3, 1, 1), m.large(x)], 1)), m.one(y)


def through_a_chain(m: Any, x: Tensor) -> Any:
    first = torch.cat([m.small(x), 0.5 * m.small(x)], 1)
    return m.three(torch.cat([first, m.large(x)], 1)), m.both(first)


def with_the_image(m: Any, x: Tensor) -> Any:
    return m.image(torch.cat([x, F.pad(m.large(x), (1, 1, 1, 1))], 1)), m.small(x)


def with_the_other_half(m: Any, x: Tensor) -> Any:
    first, second = m.small(x).chunk(2, 1)
    return m.one(torch.cat([first, m.large(x)[:, 4:]], 1)), m.one(torch.cat([second, 0.5 * second], 1))


READ_BESIDES: dict[str, Callable[[Any, Tensor], Any]] = {
    "by a layer": lambda m, x: (m.both(torch.cat([y := m.small(x), m.large(x)], 1)), m.one(y)),
    "by a layer, activated": lambda m, x: (m.both(torch.cat([y := m.small(x).relu(), m.large(x)], 1)), m.one(y)),
    "activated behind": lambda m, x: (m.both(torch.cat([F.relu6(y := m.small(x)), m.large(x)], 1)), m.one(y)),
    "by a layer, pooled": with_maximum,
    "flat": lambda m, x: (
        m.both(torch.cat([y := m.small(x), m.large(x)], 1).flatten(2).unflatten(2, (10, 10))),
        m.one(y.flatten(2).unflatten(2, (10, 10))),
    ),
    "in a chain": through_a_chain,
    "by the user": lambda m, x: (m.both(torch.cat([y := m.small(x), m.large(x)], 1)), y),
    "by a float operator": lambda m, x: (m.both(torch.cat([y := m.small(x), m.large(x)], 1)), torch.sin(y)),
    "the image": with_the_image,
    "stacked": lambda m, x: (m.both(torch.stack([y := m.small(x), m.large(x)], 1).flatten(1, 2)), m.one(y)),
    "another part": with_the_other_half,
}


@pytest.mark.parametrize("name", one_of(3, READ_BESIDES))
def test_what_else_reads_a_joined_value_finds_it_on_a_grid_of_its_own(name):
    x, model = data(), Joining(READ_BESIDES[name]).eval()
    prepared = calibrated(model, x)
    expected = [value.detach() for value in tensors(model(x))]
    int8 = prepared.convert(check=x)
    assert not int8.parity.breaches
    for form in (int8, prepared.convert(to="fake_quant"), prepared.convert(to="reference")):
        for value, wanted in zip(tensors(form(x)), expected, strict=True):
            assert sqnr(wanted, value) > FINE


ONLY_JOINED: dict[str, tuple[Callable[[Any, Tensor], Any], dict[str, str]]] = {
    "at once": (lambda m, x: m.both(torch.cat([m.small(x), m.large(x)], 1)), {"small": "cat", "large": "cat"}),
    "moved": (
        lambda m, x: m.both(torch.stack([F.max_pool2d(m.small(x), 2), F.max_pool2d(m.large(x), 2)], 1).flatten(1, 2)),
        {"small": "stack", "large": "stack", "max_pool2d": "stack"},
    ),
    "a sum": (
        lambda m, x: m.both(torch.cat([m.small(x).relu() + m.one(F.pad(m.small(x), [1] * 4)), m.large(x)], 1)),
        {"add": "cat", "large": "cat"},
    ),
    "in a chain": (
        lambda m, x: m.three(torch.cat([torch.cat([m.small(x), m.large(x)], 1), m.large(x)], 1)),
        {"small": "cat_1", "large": "cat_1", "large_1": "cat_1", "cat": "cat_1"},
    ),
    "again in the chain": (
        lambda m, x: m.three(torch.cat([torch.cat([y := m.small(x), m.large(x)], 1), y], 1)),
        {"small": "cat_1", "large": "cat_1", "cat": "cat_1"},
    ),
}


@pytest.mark.parametrize("name", ONLY_JOINED)
def test_what_only_a_join_reads_lies_on_its_grid_and_is_copied(name):
    function, owners = ONLY_JOINED[name]
    prepared = calibrated(Joining(function), data())
    assert {each: prepared.plan.qparams_owner(TensorRef(each)).name for each in owners} == owners
    joins = [module for module in prepared.convert().modules() if isinstance(module, QuantizedCat)]
    for join in joins:
        assert all(join.qparams("y").same_qparams(join.qparams(f"x{i}")) for i in range(2))


def test_what_has_another_kind_of_grid_keeps_it():
    two_bits = fxq.QConfig(fxq.MinMaxObserver.with_args(dtype=torch.uint8, bits=2), default_per_channel_weight_observer)
    rules = fxq.get_default_qconfig_mapping().set_module_name("small", two_bits)
    model = Joining(lambda m, x: m.both(torch.cat([m.small(x), torch.tanh(m.large(x)), 2.0 * m.large(x)], 1)[:, :16]))
    policies = fxq.prepare(model.eval(), data(), rules).plan.policies
    assert isinstance(policies[TensorRef("small")], Observed)  # of 2 bits
    assert policies[TensorRef("mul")] == SharedWith(TensorRef("large_1"), factor=2.0)
    assert isinstance(policies[TensorRef("large_1")], Observed)


def dense(ratio: float) -> Joining:
    """``small`` is read by two joins, one of which also joins what is ``ratio`` times as large."""

    def forward(m: Any, x: Tensor) -> Any:
        y = m.small(x)
        return m.both(torch.cat([y, m.small(x) * 0.5], 1)), m.other(torch.cat([y, m.large(x)], 1))

    return Joining(forward, ratio)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 100.0])
def test_joins_of_the_same_value_share_a_grid_only_where_their_ranges_are_alike(ratio):
    x, model = data(), dense(ratio).eval()
    prepared = calibrated(model, x)
    assert isinstance(prepared.plan.policies[TensorRef("small")], Observed)  # before ranges are known
    int8 = prepared.convert(check=x)
    plan = int8.quant_plan
    together = ratio < 2
    assert plan.qparams[TensorRef("cat")].same_qparams(plan.qparams[TensorRef("cat_1")]) is together
    owners = {plan.qparams_owner(TensorRef(name)) for name in ("small", "cat", "cat_1")}
    assert len(owners) == (1 if together else 3)
    assert not int8.parity.breaches
    for value, wanted in zip(int8(x), model(x), strict=True):
        assert sqnr(wanted.detach(), value) > FINE


def test_a_value_with_other_readers_shares_the_grid_of_a_join_only_within_half_a_bit():
    def shares(ratio: float) -> bool:
        prepared = calibrated(Joining(READ_BESIDES["by a layer"], ratio), data())
        qparams = prepared.convert().quant_plan.qparams
        return qparams[TensorRef("small")].same_qparams(qparams[TensorRef("cat")])

    assert [shares(ratio) for ratio in (0.9, 1.2, 1.8, 3.0)] == [True, True, False, False]


def test_a_grid_over_two_ranges_holds_both():
    def forward(m: Any, x: Tensor) -> Any:
        y = m.small(x).clamp(-0.5, 0.5)
        up, down = m.large(x).clamp(-0.5, 0.9), m.large(x).clamp(-0.9, 0.5)
        return m.both(torch.cat([y, up], 1)), m.both(torch.cat([y, down], 1))

    qconfig = fxq.QConfig(fxq.MinMaxObserver.with_args(dtype=torch.uint8), default_per_channel_weight_observer)
    x = data()
    prepared = fxq.calibrate(fxq.prepare(Joining(forward, 1.0).eval(), x, qconfig), [x], progress=False)
    plan = prepared.convert().quant_plan
    qparams = plan.qparams[TensorRef("cat")]
    assert qparams.same_qparams(plan.qparams[TensorRef("cat_1")])
    low, high = (float((end - qparams.zero_point) * qparams.scale) for end in (0, 255))
    torch.testing.assert_close([low, high], [-0.9, 0.9], rtol=0, atol=float(qparams.scale))


def test_a_shell_that_was_never_calibrated_takes_the_state():
    x, model = data(), dense(1.0).eval()
    int8 = calibrated(model, x).convert()
    shell = fxq.convert(fxq.prepare(model, x), allow_uncalibrated=True)
    shell.load_state_dict(int8.state_dict())
    for value, wanted in zip(shell(x), int8(x), strict=True):
        assert torch.equal(value, wanted)


TRAINED_MODELS: dict[str, tuple[Callable[[Any, Tensor], Any], set[str]]] = {
    "cat": (ONLY_JOINED["at once"][0], {"cat"}),
    "stack of moved": (ONLY_JOINED["moved"][0], {"stack"}),
    "chain": (ONLY_JOINED["in a chain"][0], {"cat_1"}),
    "sum": (ONLY_JOINED["a sum"][0], {"cat", "relu", "small_1"}),
    "read besides": (READ_BESIDES["by a layer"], {"cat", "small"}),
    "clamped besides": (READ_BESIDES["activated behind"], {"cat", "small"}),
    "two joins": (dense(1.0).function, {"cat", "cat_1", "small", "small_1"}),
}
"""Name -> forward, and the values that are rounded, beside the input and what the last layers make."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ratio", [1.0, pytest.param(3.0, marks=pytest.mark.slow), 100.0])
@pytest.mark.parametrize("name", TRAINED_MODELS)
def test_training_rounds_what_is_joined_once(name, ratio):
    function, rounded = TRAINED_MODELS[name]
    x, model = data(), Joining(function, ratio).eval()
    expected = [value.detach() for value in tensors(model(x))]
    untrained = tensors(calibrated(model, x).convert()(x))
    qat = fxq.prepare_qat(model, x).train()
    for _ in range(8):
        qat(x)
    simulated = tensors(qat.eval()(x))
    int8 = fxq.convert(qat, check=x)
    assert not int8.parity.breaches
    for value, plain, wanted, before in zip(tensors(int8(x)), simulated, expected, untrained, strict=True):
        assert sqnr(wanted, value) > sqnr(wanted, before) - TRAINED
        assert sqnr(plain.detach(), value) > SIMULATED
    homes = {ref.name for ref in qat.quant_plan.fake_quants if ref.kind == "activation"}
    assert homes - {"x", "one", "both", "three", "other"} == rounded
