"""Softmax and layer norm: float values, or quantized values where there are such already, to quantized values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.kernels import layer_norm, softmax
from fxquant.kernels.norm.layer_norm import reference as layer_norm_reference
from fxquant.kernels.norm.softmax import reference as softmax_reference
from fxquant.nn.base import QuantizedModule, byte_qparams, integer_limits
from fxquant.patterns.norm import softmax_arguments
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import QParams


class _Normalized(QuantizedModule):
    """Holds what both have in common: qparams of the result, and of the input if that is quantized."""

    def __init__(self, y: QParams, x: QParams | None) -> None:
        super().__init__()
        self.add_qparams("y", byte_qparams("the output", y))
        if x is not None:
            self.add_qparams("x", byte_qparams("the input", x))

    def pack(self) -> tuple[Any, ...]:
        """Return the scale of the input, and the last arguments of the operators."""
        y = self.qparams("y")
        x_scale = self.scalars("x")[0] if "x" in self._schemes else 1.0
        return x_scale, *self.scalars("y"), *integer_limits(y, None), y.scheme.dtype


class QuantizedSoftmax(_Normalized):
    """``q_y = quantize(softmax(x, dim))`` in one operator: ``fxquant.kernels.norm.softmax``.

    Args:
        dim: The dimension that sums to 1.
        y: Qparams of the output; at most 8 bits, per tensor.
        x: Qparams of the input, where it is quantized; None: it has float values.
        safe: Whether a row of nothing but minus infinity is 0 in place of NaN, as in ``torch._safe_softmax``.

    Shape:
        Floating point, uint8 or int8, any but []; called as the float function is, whose other arguments are known.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    def __init__(self, dim: int, y: QParams, x: QParams | None = None, safe: bool = False) -> None:
        super().__init__(y, x)
        self.dim = dim
        self.safe = safe

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedSoftmax:
        """Build the module of a unit, from its node ``softmax``."""
        node = unit.nodes["softmax"]
        dim, _ = softmax_arguments(node)
        return cls(dim, unit.qparams["y"], unit.qparams.get("x"), safe=node.target is torch._safe_softmax)

    def forward(self, x: Tensor, *known: Any, **also_known: Any) -> Tensor:
        x_scale, *y = self._packed or self.packed()
        rows = _contiguous(x.transpose(self.dim, -1))
        return softmax(rows, x_scale, self.safe, *y).transpose(self.dim, -1)

    def reference(self, *inputs: Tensor) -> Tensor:
        x_scale, *y = self.packed()
        rows = _contiguous(inputs[0].transpose(self.dim, -1))
        return softmax_reference(rows, x_scale, self.safe, *y).transpose(self.dim, -1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}{', safe=True' if self.safe else ''}, {super().extra_repr()}"


class QuantizedLayerNorm(_Normalized):
    """``q_y = quantize(layer_norm(x))`` in one operator: ``fxquant.kernels.norm.layer_norm``.

    Buffers: ``weight`` and ``bias``, float32 [columns], 1 and 0 where the layer has none.

    Args:
        layer: The float layer.
        y: Qparams of the output; at most 8 bits, per tensor.
        x: Qparams of the input, where it is quantized; None: it has float values.

    Shape:
        Floating point, uint8 or int8 [..., *layer.normalized_shape].

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, layer: nn.LayerNorm, y: QParams, x: QParams | None = None) -> None:
        super().__init__(y, x)
        self.normalized_shape = tuple(layer.normalized_shape)
        self.eps = layer.eps
        device = y.scale.device
        for name, value in (("weight", 1.0), ("bias", 0.0)):
            own = getattr(layer, name, None)
            made = torch.full((math.prod(self.normalized_shape),), value, device=device) if own is None else own
            self.register_buffer(name, made.detach().to(torch.float32).reshape(-1).clone())

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedLayerNorm:
        """Build the module of a unit, from its layer ``norm``."""
        return cls(unit.modules["norm"], unit.qparams["y"], unit.qparams.get("x"))

    def forward(self, x: Tensor) -> Tensor:
        x_scale, *y = self._packed or self.packed()
        return layer_norm(self._rows(x), self.weight, self.bias, self.eps, x_scale, *y).view(x.shape)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        x_scale, *y = self.packed()
        return layer_norm_reference(self._rows(x), self.weight, self.bias, self.eps, x_scale, *y).view(x.shape)

    def _rows(self, x: Tensor) -> Tensor:
        return _contiguous(x).view(*x.shape[: x.dim() - len(self.normalized_shape)], len(self.weight))

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, {super().extra_repr()}"


def _contiguous(x: Tensor) -> Tensor:
    """Return a tensor as the operators take it: bytes, or float32."""
    return (x.to(torch.float32) if x.is_floating_point() else x).contiguous()
