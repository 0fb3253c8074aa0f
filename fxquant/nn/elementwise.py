"""Sums, products and joins of stored integers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fxquant.kernels import add, cat, mul
from fxquant.kernels.elementwise.binary import add_reference, mul_reference
from fxquant.kernels.elementwise.cat import reference as cat_reference
from fxquant.nn.base import integer_limits
from fxquant.nn.same_dtype import SameDtypeModule
from fxquant.plan.spec import Clamp, QParams


class _Binary(SameDtypeModule):
    """What the sum and the product of two tensors have in common."""

    def __init__(self, a: QParams, b: QParams, y: QParams, activation: Clamp | None = None) -> None:
        super().__init__()
        self.add_same_dtype_qparams("y", y)
        self.add_same_dtype_qparams("a", a)
        self.add_same_dtype_qparams("b", b)
        self.activation = activation

    def pack(self) -> tuple[float, int, tuple[float, int, float, int, int, int]]:
        """Scale and zero point of ``a``, and all that the operator takes after ``b``."""
        limits = integer_limits(self.qparams("y"), self.activation)
        return *self.numbers("a"), (*self.numbers("b"), *self.numbers("y"), *limits)

    def extra_repr(self) -> str:
        activation = "" if self.activation is None else f", activation={self.activation}"
        return super().extra_repr() + activation


class QuantizedAdd(_Binary):
    """``q_y = quantize(act(a + b))`` of stored integers, in one operator: ``fxquant.kernels.add``.

    Args:
        a: Grid of the first input; at most 8 bits, per tensor, like all of them.
        b: Grid of the second one.
        y: Grid of the output, after the activation.
        activation: Clamp of the sum, in real units.

    Shape:
        Two uint8 or int8 tensors that broadcast; the result has the layout of the one that is not repeated.

    Raises:
        LoweringError: a grid does not fit a byte.
    """

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        scale, zero_point, rest = self._packed or self.packed()
        return add(self.take("a", a), scale, zero_point, self.take("b", b), *rest)

    def reference(self, *inputs: Tensor) -> Tensor:
        a, b = inputs
        scale, zero_point, rest = self.packed()
        return add_reference(self.take("a", a), scale, zero_point, self.take("b", b), *rest)


class QuantizedSub(_Binary):
    """``q_y = quantize(act(a - b))`` of stored integers: the sum of ``a`` and of ``b`` mirrored.

    Mirroring every stored integer and the zero point (``~q``) turns the sign of the number exactly.

    Args:
        a: Grid of the first input; at most 8 bits, per tensor, like all of them.
        b: Grid of the second one.
        y: Grid of the output, after the activation.
        activation: Clamp of the difference, in real units.

    Shape:
        Two uint8 or int8 tensors that broadcast; the result has the layout of the one that is not repeated.

    Raises:
        LoweringError: a grid does not fit a byte.
    """

    def pack(self) -> tuple[float, int, tuple[float, int, float, int, int, int]]:
        scale, zero_point, rest = super().pack()
        mirrored = 255 - rest[1] if self.y_dtype == torch.uint8 else ~rest[1]
        return scale, zero_point, (rest[0], mirrored, *rest[2:])

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        scale, zero_point, rest = self._packed or self.packed()
        return add(self.take("a", a), scale, zero_point, ~self.take("b", b), *rest)

    def reference(self, *inputs: Tensor) -> Tensor:
        a, b = inputs
        scale, zero_point, rest = self.packed()
        return add_reference(self.take("a", a), scale, zero_point, ~self.take("b", b), *rest)


class QuantizedMul(_Binary):
    """``q_y = quantize(act(a * b))`` of stored integers, in one operator: ``fxquant.kernels.mul``.

    Args:
        a: Grid of the first input; at most 8 bits, per tensor, like all of them.
        b: Grid of the second one.
        y: Grid of the output, after the activation.
        activation: Clamp of the product, in real units.

    Shape:
        Two uint8 or int8 tensors that broadcast; the result has the layout of the one that is not repeated.

    Raises:
        LoweringError: a grid does not fit a byte.
    """

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        scale, zero_point, rest = self._packed or self.packed()
        return mul(self.take("a", a), scale, zero_point, self.take("b", b), *rest)

    def reference(self, *inputs: Tensor) -> Tensor:
        a, b = inputs
        scale, zero_point, rest = self.packed()
        return mul_reference(self.take("a", a), scale, zero_point, self.take("b", b), *rest)


class QuantizedCat(SameDtypeModule):
    """Joins tensors of stored integers on one grid: ``fxquant.kernels.elementwise.cat``.

    An input that is on the output's grid already is copied; another one is requantized on the way.

    Args:
        inputs: Grid of each input, roles ``x0``, ``x1``, ...; at most 8 bits, per tensor.
        y: Grid of the output.
        dim: Dimension to join along.

    Shape:
        As many uint8 or int8 tensors as grids, equal in size but for ``dim``.

    Raises:
        LoweringError: a grid does not fit a byte.
    """

    def __init__(self, inputs: Sequence[QParams], y: QParams, dim: int = 0) -> None:
        super().__init__()
        self.dim = dim
        self.add_same_dtype_qparams("y", y)
        self.roles = tuple(f"x{index}" for index in range(len(inputs)))
        for role, qparams in zip(self.roles, inputs, strict=True):
            self.add_same_dtype_qparams(role, qparams)

    def pack(self) -> tuple[list[float], list[int], int, float, int, int, int]:
        scales, zero_points = zip(*(self.numbers(role) for role in self.roles), strict=True)
        limits = integer_limits(self.qparams("y"), None)
        return list(scales), list(zero_points), self.dim, *self.numbers("y"), *limits

    def forward(self, *inputs: Tensor) -> Tensor:
        return cat(self._take_all(inputs), *(self._packed or self.packed()))

    def reference(self, *inputs: Tensor) -> Tensor:
        return cat_reference(self._take_all(inputs), *self.packed())

    def _take_all(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        return [self.take(role, q) for role, q in zip(self.roles, inputs, strict=True)]

    def extra_repr(self) -> str:
        return f"dim={self.dim}, {super().extra_repr()}"


class QuantizedStack(QuantizedCat):
    """Joins tensors of stored integers along a new dimension, on one grid.

    Args:
        inputs: Grid of each input, roles ``x0``, ``x1``, ...; at most 8 bits, per tensor.
        y: Grid of the output.
        dim: Where the new dimension stands.

    Shape:
        As many uint8 or int8 tensors as grids, equal in size; the result has one dimension more.

    Raises:
        LoweringError: a grid does not fit a byte.
    """

    def _take_all(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        return [q.unsqueeze(self.dim) for q in super()._take_all(inputs)]
