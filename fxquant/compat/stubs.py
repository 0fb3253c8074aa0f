"""Modules that mark where values are quantized in eager mode. Here they pass values on: a graph needs no marks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class QuantStub(nn.Module):
    """Passes values on."""

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()
        if qconfig is not None:
            self.qconfig = qconfig

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x``."""
        return x


class DeQuantStub(QuantStub):
    """Passes values on."""


class QuantWrapper(nn.Module):
    """Calls the module inside between two stubs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.module = module
        self.train(module.training)

    def forward(self, x: torch.Tensor) -> Any:
        """Call the module."""
        return self.dequant(self.module(self.quant(x)))
