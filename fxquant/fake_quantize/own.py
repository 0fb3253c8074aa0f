"""Weights whose integers a module of the user's choice knows: AdaRound, or any that has ``integers``."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fxquant.fake_quantize.qparams import fake_quantize, from_integers
from fxquant.plan.spec import QParams


@runtime_checkable
class OwnIntegers(Protocol):
    """A fake-quantize of weights that rounds in its own way: ``convert`` asks it for the integers."""

    def integers(self, x: Tensor) -> Tensor:
        """The integers of the weight ``x``, of its shape, on the grid that ``qparams()`` names."""
        ...

    def qparams(self) -> QParams:
        """The grid."""
        ...


class OwnIntegersFakeQuantize(nn.Module):
    """Simulates a weight by the integers of another module; differentiable, straight-through.

    Args:
        rounding: The module, with ``integers`` and ``qparams``.
    """

    def __init__(self, rounding: Any) -> None:
        super().__init__()
        self.rounding = rounding

    def forward(self, x: Tensor) -> Tensor:
        """``x``: the float weight. The result has its shape and dtype; its gradient is that of nearest rounding."""
        qparams = self.rounding.qparams()
        values = from_integers(self.rounding.integers(x), qparams.scale, qparams.zero_point, qparams.scheme).to(x.dtype)
        return _WithValues.apply(fake_quantize(x, qparams.scale, qparams.zero_point, qparams.scheme), values)


class _WithValues(torch.autograd.Function):
    """The second tensor, with the gradient going to the first."""

    generate_vmap_rule = True

    @staticmethod
    def forward(differentiable: Tensor, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
