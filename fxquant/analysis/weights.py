"""The weight of a unit in the float model and in the quantized one, and by what they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.fake_quantize.qparams import fake_quantize, from_integers
from fxquant.graph.macs import TRANSPOSED
from fxquant.graph.query import canonical_type
from fxquant.graph.recurrent import is_recurrent, stacked
from fxquant.kernels.embedding.lookup import HALF_BITS, unpack_halves
from fxquant.measure.noise import Deviation, DeviationSums
from fxquant.nn.base import QuantizedModule
from fxquant.nn.conv_transpose import QuantizedConvTranspose, plain_convolution
from fxquant.nn.embedding import QuantizedLookup
from fxquant.nn.fake_quantize import DequantizedWeight, FakeQuantizedWeight, WithWeight
from fxquant.plan.spec import QParams

ROUNDING = 1.01
"""Steps. A weight is rounded down or up, by less than one step; float32 makes it a little more."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Both weights, in one shape."""

    exact: Tensor
    """The float model's, float [*shape]."""
    given: Tensor
    """What the quantized unit multiplies with, float [*shape]."""
    axis: int
    """Dimension that counts output channels."""
    qparams: QParams | None
    """The qparams of the second; None where they are not known."""
    layer: nn.Module | None
    """The float layer, batch norm folded in; None where the weights are in another shape than its own."""
    bias: Tensor | None
    """What the quantized unit adds."""

    def as_given(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run ``layer`` with the quantized weight and bias, and nothing else of it quantized."""
        assert self.layer is not None  # whoever calls this has looked
        kind: Any = canonical_type(self.layer) or type(self.layer)
        dtype = self.exact.dtype
        bias = None if self.bias is None else self.bias.detach().to(dtype)
        return kind.forward(WithWeight(self.layer, self.given.to(dtype), bias), *args, **kwargs)

    def deviation(self) -> Deviation:
        """Measure how far the second lies from the first."""
        sums = DeviationSums()
        sums.add(self.exact, self.given, self.axis)
        return sums.result()

    @property
    def peaks(self) -> Tensor:
        """Return the largest value of each output channel of the float model, without its sign."""
        return self.exact.abs().movedim(self.axis, 0).flatten(1).amax(1)

    def changed(self) -> float:
        """Share of values that rounding does not explain: over a step from where the float weight is rounded to."""
        if self.qparams is None or self.qparams.scheme.float_qparams:
            return 0.0
        qparams = self.qparams
        expected = fake_quantize(self.exact.float(), qparams.scale, qparams.zero_point, qparams.scheme)
        steps = (self.given - expected).abs() / _step_sizes(expected, qparams)
        return float((~(steps <= ROUNDING)).double().mean())


def _step_sizes(like: Tensor, qparams: QParams) -> Tensor:
    """Return the scale of every value of a weight: by what one step of its integer moves it."""
    zero = torch.zeros_like(like, dtype=torch.int32)
    low, high = (from_integers(q, qparams.scale, qparams.zero_point, qparams.scheme) for q in (zero, zero + 1))
    return high - low


def weights_of(layer: Any, module: nn.Module) -> Weights | None:
    """Return the weights of a float layer and of the module in its place; None where they cannot be compared."""
    axis, own = int(isinstance(layer, TRANSPOSED)), layer
    if isinstance(module, QuantizedConvTranspose):
        layer, axis, own = plain_convolution(layer), 0, None
    exact: Any = getattr(layer, "weight", None)
    if is_recurrent(layer):
        exact, own = stacked(layer), None  # the forward of torch takes no other matrices
    found = _given(module)
    if exact is None or found is None or found[0].shape != exact.shape:
        return None
    bias: Any = getattr(module, "bias", None)
    return Weights(exact.detach(), found[0].detach(), axis, found[1], own, bias)


def _given(module: Any) -> tuple[Tensor, QParams | None] | None:
    """Return what a module multiplies with, and its qparams."""
    if isinstance(module, FakeQuantizedWeight):
        rounding: Any = module.weight_fake_quant
        qparams = rounding.qparams() if isinstance(rounding, StaticFakeQuantize) else None
        return rounding(module.weight), qparams
    if isinstance(module, DequantizedWeight):
        qparams = QParams(module.weight_scheme, module.weight_scale, module.weight_zero_point)
        return module.effective_weight(module.weight), qparams
    if isinstance(module, QuantizedModule) and "weight" in module._schemes and isinstance(module.weight, Tensor):
        qparams = module.qparams("weight")
        integers = module.weight
        if isinstance(module, QuantizedLookup) and module.bits == HALF_BITS:
            integers = unpack_halves(module.weight, module.columns)
        return from_integers(integers, qparams.scale, qparams.zero_point, qparams.scheme), qparams
    return None
