"""For hardware that is not here: whatever a QScheme can say is planned and simulated; nothing runs on int8."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from fxquant.backends.base import AsCalled, Backend, KeepAs, Lower, LoweringRule, anything, register_backend
from fxquant.backends.cpu import CPU
from fxquant.errors import LoweringError
from fxquant.patterns.pattern import UnitView


def no_operator(unit: UnitView) -> nn.Module:
    """Stands where another backend builds an operator; ``convert`` refuses before it gets here."""
    raise LoweringError("this backend has no integer operators", at=unit.name)


def _simulated(rule: LoweringRule) -> LoweringRule:
    """Return the same fusions and moves, for any qparams."""
    build = rule.build if isinstance(rule.build, (Lower, KeepAs, AsCalled)) else no_operator
    return replace(rule, build=build, activation=anything, weight=anything, layer=anything)


REFERENCE = register_backend(
    Backend(
        "reference",
        rules=tuple(map(_simulated, CPU.rules)),
        otherwise=LoweringRule((), no_operator),
        has_operators=False,
    )
)
"""Units are those of the CPU; ``convert(..., to="reference")`` and ``to="fake_quant"`` run them."""
