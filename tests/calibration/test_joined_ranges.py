"""What is joined is told to the user by its names where its parts differ too much for one grid."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.calibration.joined_ranges import UNEQUAL, Part, inequality, unequal
from fxquant.calibration.problems import ADVICE
from fxquant.errors import FxQuantWarning
from fxquant.measure.noise import sqnr


class Parts(nn.Module):
    """Layers whose results are joined; ``large`` gives ``ratio`` times as much, ``both`` and ``three`` read joins."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], ratio: float = 100.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = {
                name: nn.Conv2d(count, 8, 3) for name, count in (("small", 3), ("same", 3), ("both", 16), ("three", 24))
            }
        large = {name: ratio * value for name, value in layers["small"].state_dict().items()}
        layers |= {"large": nn.Conv2d(3, 8, 3), "norm": nn.GroupNorm(2, 16)}
        layers["large"].load_state_dict(large)
        for name in [name for name in layers if name in forward.__code__.co_names]:
            self.add_module(name, layers[name])
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def data() -> Tensor:
    return torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def joined(m: Any, x: Tensor) -> Tensor:
    return m.both(torch.cat([m.small(x), m.large(x)], 1))


def warned(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    messages = [str(each.message) for each in caught if issubclass(each.category, FxQuantWarning)]
    return result, [message for message in messages if message.startswith(ADVICE["unequal"].what)]


def calibrated(model: nn.Module, **options: Any) -> tuple[fxq.Quantizer, list[str]]:
    x = data()
    return warned(lambda: fxq.calibrate(fxq.prepare(model.eval(), x, **options), [x], progress=False))


def trained(model: nn.Module) -> nn.Module:
    qat = fxq.prepare_qat(model, data()).train()
    for _ in range(3):
        qat(data())
    return qat


def test_how_unequal_parts_are():
    parts = [Part("a", -1.0, 1.0), Part("b", 3.0, 20.0), Part("zero", 0.0, 0.0), Part("unseen", torch.inf, -torch.inf)]
    assert inequality(parts) == 10
    assert unequal(parts) == "a spans 2, b 20, 10 times as much"
    assert unequal([Part("a", 0.0, 1.0), Part("b", 0.0, UNEQUAL)]) == ""
    assert (inequality([]), unequal([Part("nan", torch.nan, torch.nan)])) == (1.0, "")


READ_AS_INTEGERS: dict[str, tuple[Callable[[Any, Tensor], Any], list[str]]] = {
    "by a layer": (joined, ["cat (cat output, both input): small spans 4.75, large 475, 100 times as much"]),
    "stacked": (
        lambda m, x: m.both(torch.stack([m.small(x), m.large(x)], 1).flatten(1, 2)),
        ["stack (stack output, flatten input): small spans 4.75, large 475, 100 times as much"],
    ),
    "in a chain": (
        lambda m, x: m.three(torch.cat([torch.cat([m.small(x), m.same(x)], 1), m.large(x)], 1)),
        ["cat_1 (cat_1 output, three input): cat spans "],
    ),
    "first in a chain": (
        lambda m, x: m.three(torch.cat([torch.cat([m.small(x), m.large(x)], 1), 100 * m.same(x)], 1)),
        ["cat_1 (cat_1 output, three input): small spans 4.75, large 475, 100 times as much"],
    ),
    "with another reader": (
        lambda m, x: (m.both(torch.cat([y := m.small(x), m.large(x)], 1)), y.relu() + 1),
        ["cat (cat output, both input): small spans 4.75, large 475, 100 times as much"],
    ),
    "by a layer and a norm": (
        lambda m, x: (m.both(y := torch.cat([m.small(x), m.large(x)], 1)), m.norm(y)),
        ["cat (cat output, both input): small spans 4.75, large 475, 100 times as much"],
    ),
    "moved before": (
        lambda m, x: m.both(torch.cat([m.small(x).relu(), m.large(x).flip(1)], 1)),
        ["cat (cat output, both input): relu spans "],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ_AS_INTEGERS)
def test_a_join_that_integers_are_read_of_is_warned_of(name):
    forward, lines = READ_AS_INTEGERS[name]
    prepared, messages = calibrated(Parts(forward))
    assert len(messages) == 1
    got = messages[0].split("got:      ")[1].split("\n  hint")[0].splitlines()
    assert len(got) == len(lines)
    for line, start in zip(got, lines, strict=True):
        assert line.startswith(start)
    assert messages[0].endswith(ADVICE["unequal"].hint)
    assert warned(prepared.convert)[1] == []  # it has been said
    assert "unequal" in {problem.kind for problem in prepared.calibration_report().problems}


IN_FLOAT: dict[str, Callable[[Any, Tensor], Any]] = {
    "returned": lambda m, x: torch.cat([m.small(x), m.large(x)], 1),
    "a norm": lambda m, x: m.norm(torch.cat([m.small(x), m.large(x)], 1)),
    "stacked, returned": lambda m, x: torch.stack([m.small(x), m.large(x)], 1),
    "a chain, a norm": lambda m, x: m.norm(torch.cat([torch.cat([m.small(x), m.large(x)], 1)[:, :8], m.same(x)], 1)),
}


@pytest.mark.parametrize("name", IN_FLOAT)
def test_a_join_that_only_floats_are_read_of_is_float_and_no_news(name):
    model, x = Parts(IN_FLOAT[name]).eval(), data()
    prepared, messages = calibrated(model)
    assert messages == []
    int8 = prepared.convert(check=x)
    assert not int8.parity.breaches
    wanted = model(x).detach()
    for form in (int8, prepared.convert(to="fake_quant"), prepared.convert(to="reference")):
        got = form(x)
        if name == "returned":
            assert sqnr(wanted[:, :8], got[:, :8]) > 36
        assert sqnr(wanted, got) > 36
    rows = {row.node: row for row in int8.quant_coverage.float_rows}
    join = rows["stack" if "stack" in name else "cat"]
    assert join.excused
    assert "returns it as float" in join.reason or "only float operators read it" in join.reason


@pytest.mark.parametrize(("ratio", "said"), [(1.0, 0), (7.9, 0), (8.1, 1)])
def test_less_than_three_bits_are_no_news(ratio, said):
    assert len(calibrated(Parts(joined, ratio))[1]) == said


def test_zeros_are_on_every_grid():
    assert calibrated(Parts(lambda m, x: m.both(torch.cat([m.small(x), 0.0 * m.same(x)], 1))))[1] == []


def test_the_hint_can_be_followed():
    _, messages = calibrated(Parts(joined))
    assert "set_module_name(name, None) keeps the layer that reads the join in float" in messages[0]
    model, x = Parts(joined).eval(), data()
    in_float = fxq.get_default_qconfig_mapping().set_module_name("both", None)
    prepared, messages = calibrated(model, qconfig=in_float)
    assert messages == []
    assert {row.node for row in prepared.coverage().float_rows} == {"cat", "both"}

    def scaled(m: Any, x: Tensor) -> Tensor:
        return m.both(torch.cat([100 * m.small(x), m.large(x)], 1))

    before = Parts(joined)
    with torch.no_grad():
        before.both.weight[:, :8] *= 1e2  # the small ones matter
    after = Parts(scaled)
    after.load_state_dict(before.state_dict())
    with torch.no_grad():
        after.both.weight[:, :8] /= 1e2
    wanted = before.eval()(x).detach()
    torch.testing.assert_close(after.eval()(x), wanted, rtol=1e-4, atol=1e-2)
    for each, decibels in ((before, 20), (after, 35)):
        prepared, messages = calibrated(each)
        assert bool(messages) == (each is before)
        assert (sqnr(wanted, prepared.convert()(x)) > decibels) == (each is after)


@pytest.mark.parametrize("name", READ_AS_INTEGERS)
def test_what_was_trained_is_warned_of_by_convert_and_stays_int8(name):
    qat = trained(Parts(READ_AS_INTEGERS[name][0]))
    planned = {unit.root for unit in qat.quant_plan.units}
    int8, messages = warned(lambda: fxq.convert(qat))
    assert len(messages) == 1
    assert "times as much" in messages[0]
    assert {unit.root for unit in int8.quant_plan.units} == planned
    assert not any("joined_range" in key for key in int8.state_dict())


def test_training_watches_what_is_joined_where_it_is_joined():
    qat = trained(Parts(joined, 1.0))
    assert [name for name, _ in qat.named_buffers() if "joined_range" in name] == [
        "small_joined_range.ends",
        "large_joined_range.ends",
    ]
    assert warned(lambda: fxq.convert(qat))[1] == []
    state = {name: value for name, value in qat.state_dict().items() if "joined_range" not in name}
    fxq.prepare_qat(Parts(joined, 1.0), data()).load_state_dict(state)  # saved before they were watched


def test_a_state_tells_what_was_joined():
    model = Parts(joined)
    state = calibrated(model)[0].state_dict()
    assert "calibration_statistics.joined.small.ends" in state
    fresh = fxq.prepare(model.eval(), data())
    fresh.load_state_dict(state)
    assert len(warned(fresh.convert)[1]) == 1
    older = {name: value for name, value in state.items() if ".joined." not in name}
    fresh = fxq.prepare(model.eval(), data())
    fresh.load_state_dict(older)
    assert warned(fresh.convert)[1] == []


def test_a_batch_that_fails_leaves_no_trace():
    prepared, _ = calibrated(Parts(joined))
    before = prepared.calibration_statistics.joined["small"].ends.clone()
    with pytest.raises(fxq.FxQuantError):
        prepared.observe(1e3 * torch.randn(8, 3, 2, 2))
    prepared.calibration_statistics.observers_of_next_batch()
    prepared.calibration_statistics.update(prepared.observers)
    assert torch.equal(prepared.calibration_statistics.joined["small"].ends, before)
