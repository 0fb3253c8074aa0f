"""Sums, products, maxima and joins of quantized values, and PReLU with a slope for each channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fxquant.kernels import add, cat, mul, prelu, table
from fxquant.kernels.elementwise.binary import add_reference, mul_reference
from fxquant.kernels.elementwise.cat import reference as cat_reference
from fxquant.kernels.elementwise.prelu import reference as prelu_reference
from fxquant.kernels.table.table import table_reference
from fxquant.nn.base import QuantizedModule, SameDtypeModule, byte_qparams, integer_limits
from fxquant.nn.quantize import Requantize
from fxquant.nn.weight import refuse_not_finite
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import Clamp, QParams


class _Binary(SameDtypeModule):
    """Holds what the sum and the product of two tensors have in common: all but the operator and its reference."""

    _operator: ClassVar[Callable[..., Tensor]]
    _reference: ClassVar[Callable[..., Tensor]]

    def __init__(self, a: QParams, b: QParams, y: QParams, activation: Clamp | None = None) -> None:
        super().__init__()
        self.add_same_dtype_qparams("y", y)
        self.add_same_dtype_qparams("a", a)
        self.add_same_dtype_qparams("b", b)
        self.activation = activation

    @classmethod
    def from_unit(cls, unit: UnitView) -> _Binary:
        """Build the module of a unit."""
        return cls(unit.qparams["a"], unit.qparams["b"], unit.qparams["y"], unit.activation)

    def pack(self) -> tuple[float, int, tuple[float, int, float, int, int, int]]:
        """Return scale and zero point of ``a``, and all that the operator takes after ``b``."""
        limits = integer_limits(self.qparams("y"), self.activation)
        return *self.numbers("a"), (*self.numbers("b"), *self.numbers("y"), *limits)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        scale, zero_point, rest = self._packed or self.packed()
        return type(self)._operator(self.take("a", a), scale, zero_point, self._second(b), *rest)

    def reference(self, *inputs: Tensor) -> Tensor:
        a, b = inputs
        scale, zero_point, rest = self.packed()
        return type(self)._reference(self.take("a", a), scale, zero_point, self._second(b), *rest)

    def _second(self, b: Tensor) -> Tensor:
        """Check the second input, and return it as the operator takes it."""
        return self.take("b", b)

    def extra_repr(self) -> str:
        activation = "" if self.activation is None else f", activation={self.activation}"
        return super().extra_repr() + activation


class QuantizedAdd(_Binary):
    """``q_y = quantize(act(a + b))`` of quantized values, in one operator: ``fxquant.kernels.add``.

    Args:
        a: Qparams of the first input; at most 8 bits, per tensor, like all of them.
        b: Qparams of the second one.
        y: Qparams of the output, after the activation.
        activation: Clamp of the sum, of float values.

    Shape:
        Two uint8 or int8 tensors that broadcast; the result has the layout of the one that is not repeated.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    _operator, _reference = add, add_reference


class QuantizedSub(_Binary):
    """``q_y = quantize(act(a - b))`` of quantized values: the sum of ``a`` and of ``b`` mirrored.

    Mirroring every quantized value and the zero point (``~q``) turns the sign of the number exactly.

    Args:
        a: Qparams of the first input; at most 8 bits, per tensor, like all of them.
        b: Qparams of the second one.
        y: Qparams of the output, after the activation.
        activation: Clamp of the difference, of float values.

    Shape:
        Two uint8 or int8 tensors that broadcast; the result has the layout of the one that is not repeated.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    _operator, _reference = add, add_reference

    def pack(self) -> tuple[float, int, tuple[float, int, float, int, int, int]]:
        scale, zero_point, rest = super().pack()
        mirrored = 255 - rest[1] if self.y_dtype == torch.uint8 else ~rest[1]
        return scale, zero_point, (rest[0], mirrored, *rest[2:])

    def _second(self, b: Tensor) -> Tensor:
        """Check the second input, and return it mirrored."""
        return ~self.take("b", b)


class QuantizedMul(_Binary):
    """``q_y = quantize(act(a * b))`` of quantized values, in one operator: ``fxquant.kernels.mul``.

    Args:
        a: Qparams of the first input; at most 8 bits, per tensor, like all of them.
        b: Qparams of the second one.
        y: Qparams of the output, after the activation.
        activation: Clamp of the product, of float values.

    Shape:
        Two uint8 or int8 tensors that broadcast; the result has the layout of the one that is not repeated.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    _operator, _reference = mul, mul_reference


class QuantizedCat(SameDtypeModule):
    """Joins tensors of quantized values with one scale and zero point: ``fxquant.kernels.elementwise.cat``.

    An input that has the output's qparams already is copied; another one is requantized on the way.

    Args:
        inputs: Qparams of each input, roles ``x0``, ``x1``, ...; at most 8 bits, per tensor.
        y: Qparams of the output.
        dim: Dimension to join along.

    Shape:
        As many uint8 or int8 tensors as ``inputs``, equal in size but for ``dim``.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    def __init__(self, inputs: Sequence[QParams], y: QParams, dim: int = 0) -> None:
        super().__init__()
        self.dim = dim
        self.add_same_dtype_qparams("y", y)
        self.roles = tuple(f"x{index}" for index in range(len(inputs)))
        for role, qparams in zip(self.roles, inputs, strict=True):
            self.add_same_dtype_qparams(role, qparams)

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedCat:
        """Build the module of a unit, from its node ``cat`` or ``stack``."""
        (dim,) = unit.arguments("cat" if "cat" in unit.nodes else "stack", dim=0)
        return cls([unit.qparams[name] for name in unit.inputs], unit.qparams["y"], dim)

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
    """Joins tensors of quantized values along a new dimension, with one scale and zero point.

    Args:
        inputs: Qparams of each input, roles ``x0``, ``x1``, ...; at most 8 bits, per tensor.
        y: Qparams of the output.
        dim: Where the new dimension stands.

    Shape:
        As many uint8 or int8 tensors as ``inputs``, equal in size; the result has one dimension more.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    def _take_all(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        return [q.unsqueeze(self.dim) for q in super()._take_all(inputs)]


class QuantizedPReLU(SameDtypeModule):
    """``q_y = quantize(prelu(x, slope))`` of quantized values, in one operator: ``fxquant.kernels.elementwise.prelu``.

    Args:
        slope: float [C], or [1].
        x: Qparams of the input; at most 8 bits, per tensor.
        y: Qparams of the output.

    Shape:
        uint8 or int8 [N, C, ...], as ``torch.nn.PReLU`` takes it.

    Raises:
        LoweringError: qparams do not fit a byte, a slope is not finite.
    """

    slope: Tensor

    def __init__(self, slope: Tensor, x: QParams, y: QParams) -> None:
        super().__init__()
        refuse_not_finite("the slopes hold", slope, "finite slopes")
        self.register_buffer("slope", slope.detach().to(torch.float32).clone())
        self.add_same_dtype_qparams("y", y)
        self.add_same_dtype_qparams("x", x)

    def pack(self) -> tuple[Any, ...]:
        """Return the qparams of both sides, and the limits of the output."""
        return (*self.numbers("x"), *self.numbers("y"), *integer_limits(self.qparams("y"), None))

    def forward(self, x: Tensor) -> Tensor:
        scale, zero_point, *y = self._packed or self.packed()
        return prelu(self.take("x", x), scale, zero_point, self._along(x), *y)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        scale, zero_point, *y = self.packed()
        return prelu_reference(self.take("x", x), scale, zero_point, self._along(x), *y)

    def _along(self, x: Tensor) -> Tensor:
        """Return the slopes, along the dimension that torch takes for the channels: the second, or the only one."""
        return self.slope if x.dim() < 3 else self.slope.reshape(-1, *[1] * (x.dim() - 2))

    def extra_repr(self) -> str:
        return f"num_parameters={self.slope.numel()}, {super().extra_repr()}"


class QuantizedMaximum(QuantizedModule):
    """``q_y = quantize(max(a, b))`` of quantized values, element by element; or the minimum.

    Quantizing never changes an order, so both are requantized to the output's qparams first: exact.

    Args:
        a: Qparams of the first input; at most 8 bits, per tensor, like all of them.
        b: Qparams of the second one.
        y: Qparams of the output.
        largest: Else the minimum.

    Shape:
        Two uint8 or int8 tensors that broadcast.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    def __init__(self, a: QParams, b: QParams, y: QParams, *, largest: bool = True) -> None:
        super().__init__()
        self.largest = largest
        for role, what, qparams in (("a", "input a", a), ("b", "input b", b), ("y", "the output", y)):
            self.add_qparams(role, byte_qparams(what, qparams))

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedMaximum:
        """Build the module of a unit, from its node ``pick``."""
        largest = unit.nodes["pick"].target in (torch.maximum, torch.max, torch.fmax, "maximum", "max", "fmax")
        return cls(unit.qparams["a"], unit.qparams["b"], unit.qparams["y"], largest=largest)

    def pack(self) -> tuple[Tensor, Tensor]:
        y = self.qparams("y")
        first, second = (Requantize(self.qparams(role), y).pack()[0] for role in ("a", "b"))
        return first, second

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        for_a, for_b = self._packed or self.packed()
        return self._pick(table(a, for_a), table(b, for_b))

    def reference(self, *inputs: Tensor) -> Tensor:
        a, b = inputs
        for_a, for_b = self.packed()
        return self._pick(table_reference(a, for_a), table_reference(b, for_b))

    def _pick(self, a: Tensor, b: Tensor) -> Tensor:
        return (torch.maximum if self.largest else torch.minimum)(a, b)

    def extra_repr(self) -> str:
        return f"largest={self.largest}, {super().extra_repr()}"
