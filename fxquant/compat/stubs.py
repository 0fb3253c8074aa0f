"""Modules that mark for eager mode where values are quantized, and operators that it observes: a graph needs none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


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


class FloatFunctional(nn.Module):
    """Has operators without a layer as methods, so that eager mode observes what they give. They are torch's own."""

    def forward(self, x: Any) -> Any:
        """Refuse: its methods are what is called.

        Raises:
            RuntimeError: always, as in torch.ao.
        """
        raise RuntimeError("FloatFunctional is not intended to use the 'forward'. Please use the underlying operation")

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of two tensors."""
        return torch.add(x, y)

    def add_scalar(self, x: Tensor, y: float) -> Tensor:
        """Return the sum of a tensor and a number."""
        return torch.add(x, y)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the product of two tensors, element by element."""
        return torch.mul(x, y)

    def mul_scalar(self, x: Tensor, y: float) -> Tensor:
        """Return the product of a tensor and a number."""
        return torch.mul(x, y)

    def cat(self, x: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Concatenate tensors."""
        return torch.cat(list(x), dim=dim)

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of two tensors, with zero for what is negative."""
        return torch.relu(torch.add(x, y))

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the matrix product of two tensors."""
        return torch.matmul(x, y)


class FXFloatFunctional(FloatFunctional):
    """The same, under the name that torch.ao has for traced models."""
