"""Joins that one grid does not suit are float where nothing that reads them needs integers: known once calibrated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.calibration.joined_ranges import UNEQUAL
from fxquant.measure.noise import sqnr
from fxquant.passes.float_joins import ALONG, JOINED
from fxquant.patterns.registry import unregister_pattern

FINE = 25.0
"""dB of a few layers of 8 bits, of which one makes ten times as much of noise."""
REASON = "the ranges of what it joins differ 100 times, and all that reads it takes floats"


class Parts(nn.Module):
    """Layers whose results are joined, and readers of these; ``large`` gives ``ratio`` times as much as ``small``."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], ratio: float = 100.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.small, self.large, self.same = (nn.Linear(6, 8) for _ in range(3))
            self.both, self.three, self.one = nn.Linear(16, 8), nn.Linear(24, 8), nn.Linear(8, 8)
        self.large.load_state_dict({name: ratio * value for name, value in self.small.state_dict().items()})
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def data() -> Tensor:
    return torch.randn(256, 6, generator=torch.Generator().manual_seed(1))


def calibrated(forward: Callable[[Any, Tensor], Any], ratio: float = 100.0, **options: Any) -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(Parts(forward, ratio).eval(), data(), **options), [data()], progress=False)


def in_float(converted: Any) -> dict[str, str]:
    return {row.node: row.reason for row in converted.quant_coverage.float_rows}


def joined(m: Any, x: Tensor) -> Tensor:
    return torch.cat([m.small(x), m.large(x)], 1)


READ_AS_FLOATS: dict[str, tuple[Callable[[Any, Tensor], Any], dict[str, str], dict[str, str]]] = {
    "a function with an answer for every number": (
        lambda m, x: m.both(torch.sigmoid(0.1 * joined(m, x))),
        {"cat": REASON, "mul": ALONG},
        {"small": "float", "large": "float", "sigmoid": "int8"},
    ),
    "stacked": (
        lambda m, x: m.one(torch.tanh(torch.stack([m.small(x), m.large(x)], 1))),
        {"stack": REASON},
        {"small": "float", "large": "float", "tanh": "int8"},
    ),
    "moved before and behind": (
        lambda m, x: m.both(torch.sigmoid(torch.cat([m.small(x).relu().flip(1), m.large(x).relu()], 1).flip(1))),
        {"cat": REASON, "flip_1": ALONG},
        {"relu": "int8", "relu_1": "float", "sigmoid": "int8"},
    ),
    "a chain": (
        lambda m, x: m.three(torch.sigmoid(torch.cat([torch.cat([m.small(x), m.same(x)], 1), m.large(x)], 1))),
        {"cat": JOINED, "cat_1": "the ranges of what it joins differ "},
        {"small": "float", "same": "float", "large": "float", "sigmoid": "int8"},
    ),
    "a part that another layer reads": (
        lambda m, x: (m.both(torch.sigmoid(torch.cat([y := m.small(x), m.large(x)], 1))), m.one(y)),
        {"cat": REASON},
        {"small": "int8", "large": "float", "sigmoid": "int8"},
    ),
    "a sum": (
        lambda m, x: m.both(torch.sigmoid(torch.cat([m.small(x) + m.small(x), 2 * m.large(x)], 1))),
        {"cat": REASON},
        {"small": "int8", "add": "int8", "large": "int8", "mul": "int8", "sigmoid": "int8"},
    ),
}  # fmt: skip
"""Forward, what stays float with the beginning of its reason, and what some units give."""


@pytest.mark.parametrize("name", READ_AS_FLOATS)
def test_a_join_stays_float_where_nothing_needs_its_integers(name):
    forward, left, gives = READ_AS_FLOATS[name]
    prepared, x = calibrated(forward), data()
    assert in_float_before(prepared) == {}
    int8 = prepared.convert(check=x)
    reasons = in_float(int8)
    assert reasons.keys() == left.keys()
    assert all(reasons[node].startswith(reason) for node, reason in left.items())
    assert all(row.excused for row in int8.quant_coverage.float_rows)
    assert {row.node: row.gives for row in int8.quant_coverage}.items() >= gives.items()
    assert not int8.parity.breaches
    wanted = prepared.graph_module(x)
    for form in (int8, prepared.convert(to="fake_quant"), prepared.convert(to="reference")):
        for value, expected in zip(leaves(form(x)), leaves(wanted), strict=True):
            assert sqnr(expected.detach(), value) > FINE
    assert "differ 100 times" in str(int8.quant_coverage) or name == "a chain"


def in_float_before(prepared: fxq.Quantizer) -> dict[str, str]:
    return {row.node: row.reason for row in prepared.coverage().float_rows}


def leaves(values: Any) -> tuple[Tensor, ...]:
    return values if isinstance(values, tuple) else (values,)


def test_on_one_grid_the_small_part_is_lost():
    forward = READ_AS_FLOATS["stacked"][0]
    wanted, x = Parts(forward).eval()(data()).detach(), data()
    prepared = calibrated(forward)
    prepared.calibration_statistics.joined = nn.ModuleDict()
    prepared.calibration_statistics._joins = {}
    assert sqnr(wanted, prepared.convert()(x)) < FINE


NEEDED: dict[str, Callable[[Any, Tensor], Any]] = {
    "alike": lambda m, x: m.both(torch.sigmoid(torch.cat([m.small(x), m.same(x)], 1))),
    "a layer beside": lambda m, x: (m.both(y := joined(m, x)), torch.sigmoid(y)),
    "a sum": lambda m, x: m.both(torch.sigmoid((y := joined(m, x)) + y.flip(1))),
    "a moved part of it to a layer": lambda m, x: (m.both(torch.sigmoid(y := joined(m, x))), m.one(y[:, 4:12])),
}


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.filterwarnings("ignore:values of very different size are joined:fxquant.errors.FxQuantWarning")
def test_a_join_is_integers_where_one_grid_suits_it_or_something_needs_them(name):
    prepared = calibrated(NEEDED[name])
    assert "cat" in {unit.root for unit in prepared.convert(check=data()).quant_plan.units}


@pytest.mark.parametrize(("ratio", "stays"), [(UNEQUAL - 0.1, False), (UNEQUAL + 0.1, True)])
def test_from_which_ratio_on(ratio, stays):
    prepared = calibrated(READ_AS_FLOATS["stacked"][0], ratio)
    assert ("stack" in in_float(prepared.convert())) == stays


def test_what_is_asked_to_be_rounded_is_rounded():
    output = fxq.MinMaxObserver.with_args(dtype=torch.uint8)
    qconfig = fxq.QConfig(
        fxq.MinMaxObserver.with_args(dtype=torch.uint8), fxq.get_default_qconfig().weight, output=output
    )
    with pytest.warns(fxq.FxQuantWarning, match="values of very different size are joined"):
        prepared = calibrated(joined, qconfig=qconfig)
    assert in_float(prepared.convert()) == {}


def test_training_keeps_the_join_that_it_trained_and_says_so():
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.both(torch.sigmoid(joined(m, x)))

    model, x = Parts(forward), data()
    del model.same, model.three, model.one
    qat = fxq.prepare_qat(model, x).train()
    qat(x)
    with pytest.warns(fxq.FxQuantWarning, match="small spans .*, large .*, 100 times as much"):
        int8 = fxq.convert(qat, check=x)
    assert in_float(int8) == {}
    assert not int8.parity.breaches


def test_a_shell_that_was_never_calibrated_leaves_nothing_in_float():
    forward = READ_AS_FLOATS["stacked"][0]
    assert in_float(fxq.convert(fxq.prepare(Parts(forward).eval(), data()), allow_uncalibrated=True)) == {}
    fresh = fxq.prepare(Parts(forward).eval(), data())
    fresh.load_state_dict(calibrated(forward).state_dict())
    assert in_float(fresh.convert()) == {"stack": REASON}


def test_what_a_handler_declines_takes_floats():
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    @fxq.register_pattern(Scaled)
    class Handler:
        def observe(self, node, env) -> None:
            """It measures nothing."""

        def quantize(self, quantizer, node, load_arg):
            return NotImplemented

    try:
        model = Parts(lambda m, x: m.scaled(joined(m, x)))
        model.scaled = Scaled()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fxq.FxQuantWarning)
            prepared = fxq.calibrate(fxq.prepare(model.eval(), data()), [data()], progress=False)
        int8 = prepared.convert(check=data())
    finally:
        unregister_pattern("Handler[Scaled]")
    assert in_float(int8) == {"cat": REASON, "scaled": "its handler declined (NotImplemented)"}
    assert not int8.parity.breaches
    wanted = model(data()).detach()
    assert sqnr(wanted[:, :8], int8(data())[:, :8]) > FINE


@pytest.mark.filterwarnings("ignore:values of very different size are joined:fxquant.errors.FxQuantWarning")
def test_a_tuned_model_tells_the_same_of_its_joins():
    prepared = calibrated(lambda m, x: F.gelu(m.both(torch.sigmoid(joined(m, x)))))
    tuned = prepared.convert(tune=data(), check=data())
    assert in_float(tuned).keys() == {row.node for row in tuned.tuning.coverage.float_rows}
    assert not tuned.parity.breaches
