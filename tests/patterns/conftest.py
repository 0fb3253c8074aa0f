"""How the tables of patterns are tested: a model of one line, what is planned for it, and whether every form agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import fxquant as fxq
from fxquant.measure.parity import measure_parity
from fxquant.measure.parity_table import Parity
from fxquant.plan.quant_plan import QuantPlan
from tests.outputs import rounding_outputs

IMAGE = torch.linspace(-1, 1, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)


class Body(nn.Module):
    """A forward of one line, and the modules that it calls."""

    def __init__(self, body: Callable[[Body, Tensor], Tensor], modules: dict[str, nn.Module]) -> None:
        super().__init__()
        self.body = body
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        return self.body(self, x)


@pytest.fixture
def plan_of() -> Callable[..., QuantPlan]:
    """Plan a model: ``plan_of(lambda m, x: m.conv(x), conv=nn.Conv2d(4, 4, 1))``."""

    def plan(body, *, x: Tensor = IMAGE, **modules: nn.Module) -> QuantPlan:
        return fxq.prepare(Body(body, modules).eval(), x, rounding_outputs()).plan

    return plan


@pytest.fixture
def plan_behind_conv(plan_of) -> Callable[..., QuantPlan]:
    """Plan a convolution and what reads it: a function or a module."""

    def plan(reader) -> QuantPlan:
        if isinstance(reader, nn.Module):
            return plan_of(lambda m, x: m.reader(m.conv(x)), conv=nn.Conv2d(4, 4, 1), reader=reader)
        return plan_of(lambda m, x: reader(m.conv(x)), conv=nn.Conv2d(4, 4, 1))

    return plan


@dataclass(frozen=True)
class Forms:
    """One model in all its forms, and what they give for the batch that they were calibrated on."""

    prepared: fxq.Quantizer
    int8: GraphModule
    expected: Tensor
    got: Tensor
    simulated: Tensor
    parity: Parity

    @property
    def units(self) -> list[str]:
        return [unit.pattern for unit in self.prepared.plan.units]

    @property
    def sqnr(self) -> float:
        """dB of the float result over what int8 makes of it."""
        return float(10 * torch.log10(self.expected.square().mean() / (self.expected - self.got).square().mean()))


@pytest.fixture
def forms_of() -> Callable[..., Forms]:
    """Calibrate and convert a model: ``forms_of(lambda m, x: m.conv(x), conv=nn.Conv2d(4, 4, 1))``.

    What must hold of every model is asserted here: the contract of parity, and that the reference form (explicit
    quantize and dequantize) gives what the simulation gives.
    """

    def forms(body, *, x: Tensor = IMAGE, qconfig=None, **modules: nn.Module) -> Forms:
        torch.manual_seed(0)
        for module in modules.values():
            for layer in module.modules():
                if hasattr(layer, "reset_parameters"):
                    layer.reset_parameters()
                if hasattr(layer, "running_var"):
                    _give_statistics(layer)
        with torch.no_grad():
            config = qconfig if isinstance(qconfig, fxq.QConfigMapping) else rounding_outputs(qconfig)
            prepared = fxq.prepare(Body(body, modules).eval(), x, config).calibrate([x], progress=False)
            int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
            found = Forms(prepared, int8, prepared(x), int8(x), simulated(x), measure_parity(int8, simulated, (x,)))
            assert found.parity.breaches == (), found.parity
            assert torch.equal(fxq.convert(prepared, to="reference")(x), found.simulated)
        return found

    return forms


def _give_statistics(norm) -> None:
    """A batch norm that was trained."""
    if norm.running_var is None:
        return
    norm.running_mean.uniform_(-0.5, 0.5)
    norm.running_var.uniform_(0.5, 2.0)
    if norm.weight is not None:
        nn.init.uniform_(norm.weight, -1.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)


@pytest.fixture
def forms_behind_conv(forms_of) -> Callable[..., Forms]:
    """Calibrate and convert a convolution and what reads it: a function or a module."""

    def forms(reader, **options) -> Forms:
        if isinstance(reader, nn.Module):
            return forms_of(lambda m, x: m.reader(m.conv(x)), conv=nn.Conv2d(4, 4, 1), reader=reader, **options)
        return forms_of(lambda m, x: reader(m.conv(x)), conv=nn.Conv2d(4, 4, 1), **options)

    return forms
