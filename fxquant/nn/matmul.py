"""The product of two activations on quantized values."""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import InputError
from fxquant.kernels import matmul
from fxquant.kernels.matmul.matmul import reference as matmul_reference
from fxquant.nn.base import QuantizedModule, byte_qparams, integer_limits
from fxquant.patterns.pattern import UnitView
from fxquant.patterns.unary import factor_of
from fxquant.plan.spec import Clamp, QParams

Arguments = tuple[float, int, tuple[float, int, float, int, int, int, torch.dtype]]


class QuantizedMatmul(QuantizedModule):
    """``q_y = quantize(act(a @ b * factor))`` of quantized values, in one operator: ``fxquant.kernels.matmul.matmul``.

    Args:
        a: Qparams of the first factor; at most 8 bits, per tensor, like all of them.
        b: Qparams of the second one.
        y: Qparams of the output, after the activation. None: float values, the exact sums times both scales, as
            ``float_result`` says.
        activation: Clamp of the product, of float values.
        factor: A positive number that the product is multiplied with before that; it is part of the scale.

    Shape:
        uint8 or int8 [..., M, K] and [..., K, N], each as its qparams say, to [..., M, N]; as for ``torch.matmul``
        leading dimensions broadcast, and [K] is a row or a column.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    def __init__(
        self, a: QParams, b: QParams, y: QParams | None, activation: Clamp | None = None, factor: float = 1.0
    ) -> None:
        super().__init__()
        self.add_qparams("a", byte_qparams("input a", a))
        self.add_qparams("b", byte_qparams("input b", b))
        self.add_result(None if y is None else byte_qparams("the output", y))
        self.activation = activation
        self.factor = factor

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedMatmul:
        """Build the module of a unit; a number that the product is multiplied with is captured as ``scaled``."""
        factor = factor_of(unit.nodes["scaled"]) if "scaled" in unit.nodes else 1.0
        return cls(unit.qparams["a"], unit.qparams["b"], unit.qparams.get("y"), unit.activation, factor)

    def pack(self) -> Arguments:
        """Return scale and zero point of ``a``, and all that the operator takes after ``b``."""
        a_scale, a_zero_point = self.scalars("a")
        a_scale *= self.factor
        if self.float_result is not None:
            return a_scale, a_zero_point, (*self.scalars("b"), 1.0, 0, 0, 0, torch.float32)
        y = self.qparams("y")
        limits = integer_limits(y, self.activation)
        return a_scale, a_zero_point, (*self.scalars("b"), *self.scalars("y"), *limits, y.scheme.dtype)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        scale, zero_point, rest = self._packed or self.packed()
        self._check(a, b)
        return self.finish_float_result(matmul(a, scale, zero_point, b, *rest), self.activation)

    def reference(self, *inputs: Tensor) -> Tensor:
        a, b = inputs
        scale, zero_point, rest = self.packed()
        self._check(a, b)
        return self.finish_float_result(matmul_reference(a, scale, zero_point, b, *rest), self.activation)

    def _check(self, a: Tensor, b: Tensor) -> None:
        for role, q in (("a", a), ("b", b)):
            if q.dtype != self._schemes[role].dtype:
                raise InputError(
                    "a quantized operator got an input that it was not made for",
                    at=self.unit or type(self).__name__,
                    got=f"{role}: {q.dtype}",
                    expected=self._schemes[role].dtype,
                )

    def extra_repr(self) -> str:
        factor = "" if self.factor == 1 else f", factor={self.factor:.6g}"
        return super().extra_repr() + factor + ("" if self.activation is None else f", activation={self.activation}")
