"""Bounds of clamps that are constant tensors are numbers: the clamp is part of the unit, with the bits of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.measure.parity import measure_parity
from tests.sampling import one_of

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
LOW, HIGH = -0.25, 0.5
Spelling = Callable[[Any, Tensor], Tensor]


class Clamped(nn.Module):
    """A clamp between two convolutions, and tensors that may be its bounds."""

    def __init__(self, clamp: Spelling) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)
        self.clamp = clamp
        self.register_buffer("low", torch.tensor(LOW))
        self.high = nn.Parameter(torch.tensor(HIGH))
        self.plain = torch.tensor(HIGH)
        self.channels = nn.Parameter(torch.full((4, 1, 1), HIGH))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.clamp(self, self.first(x)))


def prepared(clamp: Spelling) -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(Clamped(clamp).eval(), X), [X], progress=False)


CONSTANT = {
    "made in forward": (lambda m, x: torch.clamp(x, torch.tensor(LOW), torch.tensor(HIGH)), (LOW, HIGH)),
    "buffer, parameter": (lambda m, x: x.clip(m.low, m.high), (LOW, HIGH)),
    "computed": (lambda m, x: x.clamp(-m.high, m.high + 1), (-HIGH, HIGH + 1)),
    "minimum": (lambda m, x: torch.clamp_min(x, m.low), (LOW, None)),
    "maximum": (lambda m, x: x.clamp(max=m.plain), (None, HIGH)),
    "one element": (lambda m, x: x.clamp(max=m.plain.reshape(1, 1)), (None, HIGH)),
    "float64": (lambda m, x: x.clamp(max=torch.tensor(0.3, dtype=torch.float64)), (None, 0.3)),
    "hardtanh": (lambda m, x: F.hardtanh(x, -0.3, m.plain), (-0.3, HIGH)),
    "in place": (lambda m, x: x.clamp_(m.low, m.high), (LOW, HIGH)),
    "without zero": (lambda m, x: x.clamp(min=m.plain), (HIGH, None)),
}


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")
@pytest.mark.parametrize("name", one_of(3, CONSTANT))
def test_a_constant_bound_is_a_number(name: str) -> None:
    clamp, bounds = CONSTANT[name]
    found, wanted = prepared(clamp), prepared(lambda m, x: torch.clamp(x, *bounds))
    assert [unit.pattern for unit in found.plan.units] == ["conv_act", "conv"]
    assert found.plan.refusals == ()
    with torch.no_grad():
        assert torch.equal(found(X), Clamped(clamp).eval()(X))
        int8 = fxq.convert(found)
        assert torch.equal(int8(X), fxq.convert(wanted)(X))
        assert measure_parity(int8, fxq.convert(found, to="fake_quant"), (X,)).breaches == ()


@pytest.mark.parametrize(
    ("clamp", "reason"),
    [
        (lambda m, x: x.clamp(max=x.amax()), "its bounds are computed at run time"),
        (
            lambda m, x: x.clamp(max=m.channels),
            "its bound 'channels' is a tensor of several values, or one that training may change",
        ),
    ],
)
def test_other_tensors_keep_it_float(clamp: Spelling, reason: str) -> None:
    found = prepared(clamp)
    assert [unit.pattern for unit in found.plan.units] == ["conv", "conv"]
    assert [each.reason for each in found.plan.refusals if "only float" not in each.reason] == [reason]


def test_a_bound_that_makes_the_result_larger_or_wider_stays_a_tensor() -> None:
    for clamp in (
        lambda m, x: x.clamp(max=m.plain.reshape(1, 1, 1, 1, 1))[0],
        lambda m, x: x.clamp(max=m.plain.reshape(1).double()).float(),
    ):
        model = Clamped(clamp).eval()
        found = fxq.prepare(model, X)
        assert "conv_act" not in [unit.pattern for unit in found.plan.units]
        with torch.no_grad():
            assert torch.equal(found(X), model(X))


def test_bounds_that_train_stay_tensors() -> None:
    trained = fxq.prepare_qat(Clamped(lambda m, x: x.clamp(m.low, m.high) * m.channels).train(), X)
    trained(X).sum().backward()
    assert dict(trained.named_parameters())["high"].grad is not None
    made = fxq.prepare_qat(
        Clamped(lambda m, x: x.clamp(-m.plain, torch.tensor(HIGH)) * (m.channels * m.high)).train(), X
    )
    assert [node.args[1:] for node in made.graph.nodes if node.target is torch.clamp] == [(-HIGH, HIGH)]


def test_states_load() -> None:
    clamp = CONSTANT["buffer, parameter"][0]
    one, other = prepared(clamp), fxq.prepare(Clamped(clamp).eval(), X)
    other.load_state_dict(one.state_dict())
    with torch.no_grad():
        assert torch.equal(fxq.convert(other)(X), fxq.convert(one)(X))
