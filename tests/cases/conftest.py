"""Small models from reports of what quantization tools got wrong, each with the right answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import fxquant as fxq
from tests.outputs import rounding_outputs


def sqnr(expected: Tensor, got: Tensor) -> float:
    """dB of a float result over the error of another."""
    return float(10 * torch.log10(expected.square().mean() / (expected - got).square().mean()))


@dataclass(frozen=True)
class Case:
    """A model, calibrated on its own inputs, and its int8 form."""

    prepared: fxq.Quantizer
    int8: GraphModule
    expected: Any
    got: Any

    def sqnr(self, pick: Callable[[Any], Tensor] = lambda value: value) -> float:
        return sqnr(pick(self.expected), pick(self.got))

    @property
    def units(self) -> list[str]:
        return [unit.pattern for unit in self.prepared.plan.units]


@pytest.fixture
def case() -> Callable[..., Case]:
    """``case(model, x, ...)``: calibrate on the inputs, convert, run."""

    def run(model: nn.Module, *inputs: Tensor, qconfig: Any = None) -> Case:
        model = model.eval()
        with torch.no_grad():
            prepared = fxq.prepare(model, inputs, qconfig or rounding_outputs()).calibrate([inputs], progress=False)
            int8 = fxq.convert(prepared)
            return Case(prepared, int8, model(*inputs), int8(*inputs))

    return run


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
