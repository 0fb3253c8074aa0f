"""A convolution on quantized values, with batch norm, activation and residual already inside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from fxquant.errors import InputError
from fxquant.kernels.conv.native import NativeConv
from fxquant.kernels.conv.reference import ConvGeometry, conv_reference
from fxquant.kernels.epilogue import Epilogue
from fxquant.nn.base import byte_qparams, counted
from fxquant.nn.weight import (
    WeightedModule,
    check_reference_may_run,
    float_bias,
    integer_weight,
    kernel_of,
    why_not_native,
)
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import Clamp, QParams


class QuantizedConv(WeightedModule):
    """``q_y = quantize(act(conv(x) + bias + residual))`` of quantized values, in one operator; or the same unrounded.

    ``kernels.epilogue`` defines the result to the bit, and ``fxquant::conv2d`` and ``conv3d`` compute it so; where they
    cannot run, the Python reference does. :meth:`kernel` says which, and why.

    Args:
        conv: The float convolution, batch norm folded in. Any stride, padding, dilation and groups.
        x: Qparams of the input; at most 8 bits, per tensor.
        weight: Qparams of the weight; at most 8 bits, per tensor or per output channel.
        y: Qparams of the output, after the activation. None: float values, as ``float_result`` says.
        activation: Clamp between sum and output, of float values. With ``y`` it costs nothing: it narrows the integers
            that the output may have (``integer_limits``).
        residual: Qparams of a second input that is added before the activation.

    Shape:
        x: uint8 or int8 [N, C_in, *spatial] or [C_in, *spatial], 1 to 3 spatial dimensions.
        residual: uint8 or int8, broadcasts to the output.
        Output: uint8, int8 or float values [N, C_out, *out] or [C_out, *out]. The native operator gives integers in
            channels_last order; float values lie as ``float_result`` says.

    Raises:
        LoweringError: qparams that int8 operators cannot take, a weight or a bias that is not finite.
    """

    bias: Tensor | None
    weight_scale: Tensor
    weight_zero_point: Tensor

    def __init__(
        self,
        conv: nn.Conv1d | nn.Conv2d | nn.Conv3d,
        *,
        x: QParams,
        weight: QParams,
        y: QParams | None,
        activation: Clamp | None = None,
        residual: QParams | None = None,
    ) -> None:
        super().__init__()
        integers, weight_qparams = integer_weight(conv.weight, weight)
        self.add_weight(integers)
        self.register_buffer("bias", float_bias(conv.bias))
        self.add_qparams("x", byte_qparams("the input", x))
        self.add_qparams("weight", weight_qparams)
        self.add_result(None if y is None else byte_qparams("the output", y))
        if residual is not None:
            self.add_qparams("residual", byte_qparams("the residual", residual))
        self.x_dtype = x.scheme.dtype
        self.has_residual = residual is not None
        self.activation = activation
        self.geometry = ConvGeometry.of(conv)
        self.in_channels = conv.weight.shape[1] * conv.groups

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedConv:
        """Build the module of a unit, from its convolution ``conv``."""
        return cls(
            unit.modules["conv"],
            x=unit.qparams["x"],
            weight=unit.qparams["weight"],
            y=unit.qparams.get("y"),
            activation=unit.activation,
            residual=unit.qparams.get("residual"),
        )

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self._run(self._packed or self.packed(), x, residual)  # packed() calls pack() once

    def reference(self, *inputs: Tensor) -> Tensor:
        self._check_calibrated()
        return self._run(self._by_reference(self.unpacked_weight(), self.geometry), *inputs)

    def _run(self, convolve: Callable[..., Tensor], x: Tensor, residual: Tensor | None = None) -> Tensor:
        if x.dtype != self.x_dtype or (residual is not None) != self.has_residual:
            raise self._wrong_inputs(x, residual)
        channel_axis = x.dim() - self.geometry.spatial - 1  # 1 in a batch, 0 in a single example
        if channel_axis not in (0, 1) or x.size(channel_axis) != self.in_channels:
            raise self._wrong_shape(x)
        # finish_float_result (base.py) finishes float results alone; quantized values pass as they are.
        if channel_axis:
            return self.finish_float_result(convolve(x, residual=residual), self.activation)
        batch = convolve(x.unsqueeze(0), residual=None if residual is None else residual.unsqueeze(0))
        return self.finish_float_result(batch.squeeze(0), self.activation)

    def kernel(self) -> str:
        """Return what runs: ``native``, or ``reference`` and why."""
        return kernel_of(why_not_native(self.weight_zero_point, self.geometry))

    def pack(self) -> Callable[..., Tensor]:
        """Return what runs the convolution on inputs: natively, it holds the packed weight and all other arguments."""
        return self.convolution(self.unpacked_weight(), self.geometry)

    def convolution(self, weight: Tensor, geometry: ConvGeometry) -> Callable[..., Tensor]:
        """Return what runs a convolution with this unit's qparams and bias: the native operator if it can.

        A transposed convolution is several convolutions, and calls this for each.
        """
        reason = why_not_native(self.weight_zero_point, geometry)
        if not reason:
            _, x_zero_point = self.scalars("x")
            return NativeConv(weight, self.x_dtype, x_zero_point, geometry, self.epilogue())
        check_reference_may_run(self.unit or type(self).__name__, reason)
        return self._by_reference(weight, geometry)

    def _by_reference(self, weight: Tensor, geometry: ConvGeometry) -> Callable[..., Tensor]:
        _, x_zero_point = self.scalars("x")
        return partial(
            conv_reference,
            x_zero_point=x_zero_point,
            weight=weight,
            weight_zero_point=self.weight_zero_point,
            geometry=geometry,
            epilogue=self.epilogue(),
        )

    def epilogue(self) -> Epilogue:
        """Return the epilogue, as the buffers have it now."""
        x_scale, _ = self.scalars("x")
        residual_scale, residual_zero_point = self.scalars("residual") if self.has_residual else (1.0, 0)
        return Epilogue(
            x_scale=x_scale,
            weight_scale=self.weight_scale,
            bias=self.bias,
            residual_scale=residual_scale,
            residual_zero_point=residual_zero_point,
            **self.result_arguments(self.activation),
        )

    def _wrong_inputs(self, x: Tensor, residual: Tensor | None) -> InputError:
        second = {True: ", then a residual", False: ""}
        return InputError(
            "a quantized convolution got inputs that it was not made for",
            at=self.unit or type(self).__name__,
            got=f"{x.dtype}{second[residual is not None]}",
            expected=f"{self.x_dtype}{second[self.has_residual]}",
        )

    def _wrong_shape(self, x: Tensor) -> InputError:
        spatial = self.geometry.spatial
        batched = {spatial + 1: 0, spatial + 2: 1}.get(x.dim())
        sizes = ", ".join([str(self.in_channels), *("D", "H", "W")[3 - spatial :]])
        return InputError(
            "the input of a quantized convolution has the wrong shape",
            at=self.unit or type(self).__name__,
            got=f"{list(x.shape)}" if batched is None else f"{counted(x.size(batched), 'channel')} in {list(x.shape)}",
            expected=f"{counted(self.in_channels, 'channel')}: [N, {sizes}] or [{sizes}]",
        )

    def extra_repr(self) -> str:
        geometry = self.geometry
        parts = [f"{self.weight_shape[1] * geometry.groups}, {self.weight_shape[0]}"]
        parts += [f"kernel_size={geometry.kernel_size}", f"stride={geometry.stride}"]
        if any(geometry.before) or any(geometry.after):
            even = geometry.before == geometry.after
            parts.append(f"padding={geometry.before if even else (geometry.before, geometry.after)}")
        if geometry.padding_mode != "zeros":
            parts.append(f"padding_mode={geometry.padding_mode!r}")
        if any(step != 1 for step in geometry.dilation):
            parts.append(f"dilation={geometry.dilation}")
        if geometry.groups != 1:
            parts.append(f"groups={geometry.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.activation is not None:
            parts.append(f"activation={self.activation}")
        return f"{', '.join(parts)}\n{super().extra_repr()}"
