"""Backends as tables: which rule runs a pattern, and registration."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

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
    assert [r.reason for r in prepared.plan.refusals] == ["backend 'mine' has no operator for it"]
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


ROWS = torch.rand(512, 64)


class Among(nn.Module):
    """A layer between float operators, in a model with another one that is worth its borders."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.big = layer, nn.Linear(64, 64)

    def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return torch.special.i0(self.layer(torch.special.i0(x))), self.big(rows)


def fate(layer: nn.Module, *shape: int) -> str:
    """What becomes of a layer between float operators, and why."""
    rows = fxq.prepare(Among(layer).eval(), (torch.rand(shape), ROWS)).coverage().rows
    return next((row.reason or row.fate) for row in rows if row.module == "layer")


ONE_ROW = "slower in int8 alone: {:,} products on one row, and a call pays from 98,304 on"
PER_VALUE = "slower in int8 alone: {:.1f} products for each value that it reads or gives, and {} pay"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Linear(32, 64), (1, 32), ONE_ROW.format(2048)),
        (nn.Linear(32, 64), (2, 32), "int8"),
        (nn.Linear(64, 64), (1, 64), ONE_ROW.format(4096)),
        (nn.Linear(384, 384), (1, 384), "int8"),
        (nn.Linear(16, 1), (4096, 16), PER_VALUE.format(0.9, 2)),
        (nn.Linear(128, 1), (4096, 128), PER_VALUE.format(1.0, 2)),
        (nn.Linear(8, 64), (4096, 8), "int8"),
        (nn.Linear(16, 1), (512, 16), "int8"),
        (nn.Linear(64, 64), (512, 64), "int8"),
        (nn.Conv2d(3, 3, 1), (1, 3, 224, 224), PER_VALUE.format(1.5, 13)),
        (nn.Conv2d(3, 3, 1), (1, 3, 8, 8), "int8"),
        (nn.Conv2d(3, 3, 3, padding=1), (1, 3, 224, 224), "int8"),
        (nn.Conv2d(1, 1, 3, padding=1), (1, 1, 224, 224), PER_VALUE.format(4.5, 13)),
        (nn.Conv2d(3, 32, 1), (1, 3, 224, 224), PER_VALUE.format(2.7, 13)),
        (nn.Conv2d(64, 1, 1), (1, 64, 56, 56), PER_VALUE.format(1.0, 13)),
        (nn.Conv2d(16, 16, 1), (1, 16, 56, 56), PER_VALUE.format(8.0, 13)),
        (nn.Conv2d(64, 64, 1, groups=4), (1, 64, 56, 56), PER_VALUE.format(8.0, 13)),
        (nn.Conv2d(64, 64, 1), (1, 64, 56, 56), "int8"),
        (nn.Conv1d(4, 4, 3, padding=1), (1, 4, 16384), PER_VALUE.format(6.0, 13)),
        (nn.Conv2d(64, 64, 3, padding=1, groups=64), (1, 64, 56, 56), "int8"),
        (nn.Conv2d(64, 64, 1, groups=64), (1, 64, 56, 56), "int8"),
        (nn.ConvTranspose2d(8, 8, 2, 2), (1, 8, 56, 56), "int8"),
    ],
)  # fmt: skip
def test_layers_between_float_operators(layer, shape, expected):
    assert fate(layer, *shape) == expected
