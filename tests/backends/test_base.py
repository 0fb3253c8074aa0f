"""Backends as tables: which rule runs a pattern, and registration."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.backends.base import BACKENDS, Lower, LoweringRule, anything
from fxquant.errors import DuplicateNameError
from fxquant.patterns.linear import LINEAR_PATTERNS
from fxquant.patterns.shape import SHAPE

LINEAR = next(pattern for pattern in LINEAR_PATTERNS if pattern.name == "linear")
FLATTEN = next(pattern for pattern in SHAPE if pattern.name == "flatten")


def build(unit: fxq.UnitView) -> nn.Module:
    return nn.Identity()


def test_the_first_rule_that_names_the_pattern_counts():
    first, second = LoweringRule(("flatten", "linear"), Lower.KEEP), LoweringRule(("linear",), build)
    backend = fxq.Backend("mine", (first, second))
    assert backend.rule_for(LINEAR) is first
    assert fxq.Backend("mine", (second,)).rule_for(FLATTEN) is None


def test_a_patterns_own_lowering_overrides_the_table():
    own = fxq.Pattern("linear", root=LINEAR.root, lower={"mine": build})
    backend = fxq.Backend("mine", (LoweringRule(("linear",), Lower.KEEP),))
    rule = backend.rule_for(own)
    assert rule is not None
    assert rule.build is build
    assert fxq.Backend("other", backend.rules).rule_for(own) is backend.rules[0]


def test_a_rule_accepts_everything_unless_it_says_otherwise():
    rule = LoweringRule(("linear",), build)
    scheme = fxq.QScheme(bits=16, axis=0)
    assert rule.activation is rule.weight is rule.layer is anything
    assert anything(scheme) is None


@pytest.fixture
def registered():
    before = set(BACKENDS)
    yield
    for name in set(BACKENDS) - before:
        BACKENDS.remove(name)


def test_a_registered_backend_is_used_by_name(registered):
    fxq.register_backend(fxq.Backend("mine", (LoweringRule(("linear",), lambda unit: Doubling(unit)),)))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()
    x = torch.rand(3, 2)
    prepared = fxq.prepare(model, x, backend="mine")
    # This backend fuses no activation, and has nothing for a ReLU alone.
    assert [unit.pattern for unit in prepared.plan.units] == ["linear"]
    assert [r.reason for r in prepared.plan.rejections] == ["backend 'mine' has no operator for it"]
    int8 = fxq.convert(fxq.calibrate(prepared, [x], progress=False))
    assert isinstance(int8.get_submodule("0"), Doubling)


class Doubling(nn.Module):
    """A lowered module that fxquant knows nothing about."""

    def __init__(self, unit: fxq.UnitView) -> None:
        super().__init__()
        self.weight = unit.modules["linear"].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_names_are_taken_once(registered):
    fxq.register_backend(fxq.Backend("mine", ()))
    with pytest.raises(DuplicateNameError) as caught:
        fxq.register_backend(fxq.Backend("mine", ()))
    assert str(caught.value).startswith("backend 'mine' is registered already")
