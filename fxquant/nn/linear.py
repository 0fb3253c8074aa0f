"""A linear layer on stored integers, with its activation already inside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from fxquant.errors import InputError
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.linear.linear import NativeLinear
from fxquant.kernels.linear.reference import linear_reference
from fxquant.nn.base import check_features
from fxquant.nn.kernel_selection import check_reference_may_run, kernel_of, native_refusal
from fxquant.nn.weight import byte_qparams, float_bias, integer_weight
from fxquant.nn.weighted import WeightedModule
from fxquant.plan.spec import Clamp, QParams


class QuantizedLinear(WeightedModule):
    """``q_y = quantize(act(x @ weight.T + bias))`` of stored integers, in one operator; or the same unrounded.

    ``kernels.epilogue`` defines the result to the bit, and ``fxquant::linear`` computes it so; where that cannot run,
    the Python reference does. :meth:`kernel` says which, and why.

    Args:
        linear: The float layer.
        x: Grid of the input; at most 8 bits, per tensor.
        weight: Grid of the weight; at most 8 bits, per tensor or per output feature.
        y: Grid of the output, after the activation. None: real numbers, as ``float_result`` says.
        activation: Clamp between sum and output, in real units.

    Shape:
        uint8 or int8 [..., in_features] to uint8, int8 or real numbers [..., out_features].

    Raises:
        LoweringError: a grid that int8 operators cannot take, a weight or a bias that is not finite.
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

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.x_dtype:
            raise self._wrong_input(x)
        check_features(self, x, self.in_features)
        return self.finished((self._packed or self.packed())(x), self.activation)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        if x.dtype != self.x_dtype:
            raise self._wrong_input(x)
        check_features(self, x, self.in_features)
        self._check_calibrated()
        return self.finished(self._by_reference(self.plain_weight())(x), self.activation)

    def kernel(self) -> str:
        """What runs: ``native``, or ``reference`` and why."""
        return kernel_of(native_refusal(self.weight_zero_point))

    def pack(self) -> Callable[..., Tensor]:
        weight, refusal = self.plain_weight(), native_refusal(self.weight_zero_point)
        if not refusal:
            return NativeLinear(weight, self.x_dtype, self.scalars("x")[1], self.epilogue())
        check_reference_may_run(self.unit or type(self).__name__, refusal)
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
        """What follows the sums, as the buffers have it now."""
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
