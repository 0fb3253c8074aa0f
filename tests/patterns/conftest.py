"""How the tables of patterns are tested: a model of one line, and what is planned for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.plan import QuantPlan

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
        return fxq.prepare(Body(body, modules).eval(), x).plan

    return plan


@pytest.fixture
def plan_behind_conv(plan_of) -> Callable[..., QuantPlan]:
    """Plan a convolution and what reads it: a function or a module."""

    def plan(reader) -> QuantPlan:
        if isinstance(reader, nn.Module):
            return plan_of(lambda m, x: m.reader(m.conv(x)), conv=nn.Conv2d(4, 4, 1), reader=reader)
        return plan_of(lambda m, x: reader(m.conv(x)), conv=nn.Conv2d(4, 4, 1))

    return plan
