"""Linear layers on quantized values, whose input has qparams from calibration, or from each call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from fxquant.errors import InputError
from fxquant.fake_quantize.converted import choice_arguments
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.linear.dynamic_linear import NO_LIMITS, Choice, DynamicLinear, DynamicLinearByReference
from fxquant.kernels.linear.linear import NativeLinear
from fxquant.kernels.linear.reference import linear_reference
from fxquant.nn.base import byte_qparams, check_features
from fxquant.nn.weight import (
    WeightedModule,
    check_reference_may_run,
    float_bias,
    integer_weight,
    kernel_of,
    why_not_native,
)
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import Clamp, Dynamic, QParams


class QuantizedLinear(WeightedModule):
    """``q_y = quantize(act(x @ weight.T + bias))`` of quantized values, in one operator; or the same unrounded.

    ``kernels.epilogue`` defines the result to the bit, and ``fxquant::linear`` computes it so; where that cannot run,
    the Python reference does. :meth:`kernel` says which, and why.

    Args:
        linear: The float layer.
        x: Qparams of the input; at most 8 bits, per tensor.
        weight: Qparams of the weight; at most 8 bits, per tensor or per output feature.
        y: Qparams of the output, after the activation. None: float values, as ``float_result`` says.
        activation: Clamp between sum and output, of float values.

    Shape:
        uint8 or int8 [..., in_features] to uint8, int8 or float values [..., out_features].

    Raises:
        LoweringError: qparams that int8 operators cannot take, a weight or a bias that is not finite.
    """

    bias: Tensor | None
    weight_scale: Tensor
    weight_zero_point: Tensor

    def __init__(
        self, linear: nn.Linear, *, x: QParams, weight: QParams, y: QParams | None, activation: Clamp | None = None
    ) -> None:
        super().__init__()
        integers, weight_qparams = integer_weight(linear.weight, weight)
        self.add_weight(integers)
        self.register_buffer("bias", float_bias(linear.bias))
        self.add_qparams("x", byte_qparams("the input", x))
        self.add_qparams("weight", weight_qparams)
        self.add_result(None if y is None else byte_qparams("the output", y))
        self.x_dtype = x.scheme.dtype
        self.in_features = linear.weight.shape[1]
        self.activation = activation

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedLinear:
        """Build the module of a unit, from its layer ``linear``."""
        return cls(
            unit.modules["linear"],
            x=unit.qparams["x"],
            weight=unit.qparams["weight"],
            y=unit.qparams.get("y"),
            activation=unit.activation,
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.x_dtype:
            raise self._wrong_input(x)
        check_features(self, x, self.in_features)
        return self.finish_float_result((self._packed or self.packed())(x), self.activation)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        if x.dtype != self.x_dtype:
            raise self._wrong_input(x)
        check_features(self, x, self.in_features)
        self._check_calibrated()
        return self.finish_float_result(self._by_reference(self.unpacked_weight())(x), self.activation)

    def kernel(self) -> str:
        """Return what runs: ``native``, or ``reference`` and why."""
        return kernel_of(why_not_native(self.weight_zero_point))

    def pack(self) -> Callable[..., Tensor]:
        weight, reason = self.unpacked_weight(), why_not_native(self.weight_zero_point)
        if not reason:
            return NativeLinear(weight, self.x_dtype, self.scalars("x")[1], self.epilogue())
        check_reference_may_run(self.unit or type(self).__name__, reason)
        return self._by_reference(weight)

    def _by_reference(self, weight: Tensor) -> Callable[..., Tensor]:
        return partial(
            linear_reference,
            x_zero_point=self.scalars("x")[1],
            weight=weight,
            weight_zero_point=self.weight_zero_point,
            epilogue=self.epilogue(),
        )

    def epilogue(self) -> Epilogue:
        """Return the epilogue, as the buffers have it now."""
        return Epilogue(
            x_scale=self.scalars("x")[0],
            weight_scale=self.weight_scale,
            bias=self.bias,
            **self.result_arguments(self.activation),
        )

    def _wrong_input(self, x: Tensor) -> InputError:
        return InputError(
            "a quantized linear layer got an input that it was not made for",
            at=self.unit or type(self).__name__,
            got=x.dtype,
            expected=self.x_dtype,
        )

    def extra_repr(self) -> str:
        parts = [f"{self.weight_shape[1]}, {self.weight_shape[0]}"]
        if self.bias is None:
            parts.append("bias=False")
        if self.activation is not None:
            parts.append(f"activation={self.activation}")
        return f"{', '.join(parts)}\n{super().extra_repr()}"


class QuantizedDynamicLinear(WeightedModule):
    """``act(x @ weight.T + bias)``, multiplied in integers; nothing is measured beforehand.

    Each call takes the smallest and the largest value of its input, quantizes the input to the range between them, and
    multiplies as ``QuantizedLinear`` does, by the same kernels. Per token, each row has a range of its own.

    Args:
        linear: The float layer.
        x: How the input is quantized: a scheme of at most 8 bits, for the whole input or for each row.
        weight: Qparams of the weight; at most 8 bits, per tensor or per output feature.
        activation: Clamp of the sum, in float values.

    Shape:
        Floats [..., in_features] to floats [..., out_features], in the form that ``float_result`` says.

    Raises:
        LoweringError: qparams that int8 operators cannot take, a weight or a bias that is not finite.
    """

    bias: Tensor | None
    weight_scale: Tensor
    weight_zero_point: Tensor

    def __init__(self, linear: nn.Linear, *, x: Dynamic, weight: QParams, activation: Clamp | None = None) -> None:
        super().__init__()
        integers, weight_qparams = integer_weight(linear.weight, weight)
        self.add_weight(integers)
        self.register_buffer("bias", float_bias(linear.bias))
        self.add_qparams("weight", weight_qparams)
        self.add_result(None)
        self.x = x
        self.in_features = linear.weight.shape[1]
        self.activation = activation

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedDynamicLinear:
        """Build the module of a unit, from its layer ``linear``."""
        layer, weight = unit.modules["linear"], unit.qparams["weight"]
        return cls(layer, x=unit.per_call["x"], weight=weight, activation=unit.activation)

    def forward(self, input: Tensor) -> Tensor:
        check_features(self, input, self.in_features)
        return self.finish_float_result((self._packed or self.packed())(input))

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        check_features(self, x, self.in_features)
        self._check_calibrated()
        return self.finish_float_result(self._by_reference(self.unpacked_weight()).reference(x))

    def kernel(self) -> str:
        """Return what runs: ``native``, or ``reference`` and why."""
        return kernel_of(why_not_native(self.weight_zero_point))

    def pack(self) -> DynamicLinear | DynamicLinearByReference:
        weight, reason = self.unpacked_weight(), why_not_native(self.weight_zero_point)
        if not reason:
            return DynamicLinear(weight, self.weight_scale, self.bias, *self._arguments())
        check_reference_may_run(self.unit or type(self).__name__, reason)
        return self._by_reference(weight)

    def _by_reference(self, weight: Tensor) -> DynamicLinearByReference:
        layer = (weight, self.weight_zero_point, self.weight_scale, self.bias)
        return DynamicLinearByReference(*layer, *self._arguments())

    def _arguments(self) -> tuple[Choice, bool, tuple[float, float]]:
        limits = NO_LIMITS if self.activation is None else self.activation.limits
        return choice_arguments(self.x), self.x.per == "token", limits

    def extra_repr(self) -> str:
        bias = "" if self.bias is not None else ", bias=False"
        activation = "" if self.activation is None else f", activation={self.activation}"
        features = f"{self.weight_shape[1]}, {self.weight_shape[0]}"
        return f"{features}{bias}{activation}\nx: {self.x} per call, {super().extra_repr()}"
