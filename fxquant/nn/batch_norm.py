"""Batch norms: alone on quantized values, or as the factor that a weight is quantized with while it trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fxquant.graph.query import value_of
from fxquant.kernels.gradient import Differentiable, below_autograd, differentiate
from fxquant.kernels.library import compose
from fxquant.nn.conv import QuantizedConv
from fxquant.nn.folding import batch_norm_factor
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import Clamp, QParams, QScheme

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
InstanceNorm = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d

_CONVOLUTION: dict[type[nn.Module], Any] = {
    nn.BatchNorm1d: nn.Conv1d,
    nn.BatchNorm2d: nn.Conv2d,
    nn.BatchNorm3d: nn.Conv3d,
    nn.InstanceNorm1d: nn.Conv1d,
    nn.InstanceNorm2d: nn.Conv2d,
    nn.InstanceNorm3d: nn.Conv3d,
}
_BY_DIMENSIONS: dict[int, Any] = {2: nn.Conv1d, 3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}

PER_CHANNEL = QScheme(symmetric=True, axis=0)


class QuantizedBatchNorm(QuantizedConv):
    """``q_y = quantize(act(x * factor + shift))`` of quantized values, with the running statistics.

    ``factor = gamma / sqrt(running_var + eps)`` and ``shift = beta - running_mean * factor``, per channel. It runs as a
    convolution of one element with a group per channel, whose integer weights are 1, -1 or 0 and whose scales are
    ``|factor|``: nothing of the factor is rounded.

    Args:
        norm: The float module, in evaluation mode; it keeps running statistics.
        x: Qparams of the input; at most 8 bits, per tensor.
        y: Qparams of the output, after the activation.
        activation: Clamp before the output, of float values.
        dims: Dimensions of the input, where the class of ``norm`` does not say it: ``SyncBatchNorm``.

    Shape:
        uint8 or int8 [N, C, *spatial]; for ``BatchNorm1d`` also [N, C].

    Raises:
        LoweringError: qparams that int8 operators cannot take, statistics that are not finite.
    """

    def __init__(
        self,
        norm: BatchNorm | InstanceNorm,
        *,
        x: QParams,
        y: QParams,
        activation: Clamp | None = None,
        dims: int | None = None,
    ) -> None:
        factor, shift = affine(norm)
        known = (kind for norm_type, kind in _CONVOLUTION.items() if isinstance(norm, norm_type))
        kind = next(known) if dims is None else _BY_DIMENSIONS[dims]
        conv = kind(norm.num_features, norm.num_features, 1, groups=norm.num_features, device="meta")
        conv.weight = nn.Parameter(factor.reshape(-1, *conv.weight.shape[1:]), requires_grad=False)
        conv.bias = nn.Parameter(shift, requires_grad=False)
        scale = torch.where(factor == 0, torch.ones_like(factor), factor.abs())
        weight = QParams(PER_CHANNEL, scale, torch.zeros_like(scale, dtype=torch.int32))
        super().__init__(conv, x=x, weight=weight, y=y, activation=activation)

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedBatchNorm:
        """Build the module of a unit, from its norm ``bn``."""
        value, (x, y) = value_of(unit.nodes["bn"]), (unit.qparams[name] for name in ("x", "y"))
        dims = len(value.shape) if value is not None and value.has_shape else None
        return cls(unit.modules["bn"], x=x, y=y, activation=unit.activation, dims=dims)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if x.dim() > 2:
            return super().forward(x, residual)
        return super().forward(x.unsqueeze(-1), residual).squeeze(-1)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return super().reference(x) if x.dim() > 2 else super().reference(x.unsqueeze(-1)).squeeze(-1)

    def extra_repr(self) -> str:
        return f"batch norm, as {super().extra_repr()}"


def affine(norm: BatchNorm | InstanceNorm) -> tuple[Tensor, Tensor]:
    """Factor and shift of each channel, float32 [C]; computed in float64."""
    assert norm.running_mean is not None  # the patterns see to it
    assert norm.running_var is not None
    with torch.no_grad():
        factor = torch.rsqrt(norm.running_var.double() + norm.eps)
        if norm.weight is not None:
            factor = factor * norm.weight.double()
        shift = -norm.running_mean.double() * factor
        if norm.bias is not None:
            shift = shift + norm.bias.double()
        return factor.float(), shift.float()


SMALLEST_FACTOR = 1e-12
"""Below it, a factor is taken as 1 while training: a channel that is switched off can come back."""


def training_factor(gamma: Tensor | None, running_var: Tensor, eps: float) -> Tensor:
    """Return the factor that a weight is quantized with, then divided by: never near 0, of the dtype of the statistics.

    Source:
        Krishnamoorthi, arXiv:1806.08342, section 3.2.2: the running variance keeps the scale of the weight steady.
    """
    gamma = torch.ones_like(running_var) if gamma is None else gamma
    return torch.ops.fxquant.training_factor.default(gamma, running_var, eps)[0]


def _factor_and_slope(gamma: Tensor, running_var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    factor = batch_norm_factor(gamma, running_var, eps)
    slope = torch.rsqrt(running_var.double() + eps)
    small = factor.abs() < SMALLEST_FACTOR
    factor, slope = torch.where(small, 1.0, factor), torch.where(small, 0.0, slope)
    return factor.to(running_var.dtype), slope.to(gamma.dtype)


def _fake(gamma: Tensor, running_var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(running_var), torch.empty_like(gamma)


class _Factor(Differentiable):
    """Keeps the slope, and not the variance: the batch norm changes it before the backward pass."""

    @staticmethod
    def forward(ctx: Any, gamma: Tensor, running_var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        factor, slope = below_autograd(torch.ops.fxquant.training_factor.default, gamma, running_var, eps)
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(slope)
        return factor, slope

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grad.to(slope.dtype) * slope, None, None


# An operator of its own, since compilers like to compute what is cheap again from a variance that has changed by then.
compose(
    "training_factor(Tensor gamma, Tensor running_var, float eps) -> (Tensor factor, Tensor slope)",
    kernel=_factor_and_slope,
    fake=_fake,
    gradient=True,
)
differentiate(torch.ops.fxquant.training_factor.default, _Factor.apply)
