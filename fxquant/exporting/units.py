"""What stands in an explicit model for a unit: dequantize the inputs, run the float operator, quantize the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.exporting.qparams import ExplicitQParams, FloatZeroPoints, as_dtype
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.nn.fake_quantize import WithWeight
from fxquant.plan.spec import Clamp

Run = Callable[..., Any]


class ExplicitUnit(nn.Module):
    """``quantize(clamp(operator(dequantize(x), ...)))``; nothing is folded or reordered.

    Args:
        operator: A module of float values, or a function.
        inputs: Qparams of the first arguments, None for one that is float already. Further arguments are handed on.
        y: Qparams of the result; None: it stays float.
        activation: Clamp between operator and result, in float values.
        dtype: Of a float result.
        residual: Qparams of a last argument, which is added to what the operator gives.
    """

    def __init__(
        self,
        operator: Run,
        inputs: Sequence[ExplicitQParams | None],
        y: ExplicitQParams | None,
        activation: Clamp | None = None,
        dtype: torch.dtype = torch.float32,
        residual: ExplicitQParams | None = None,
    ) -> None:
        super().__init__()
        self.operator = operator
        self.inputs = nn.ModuleList([nn.Identity() if each is None else each for each in inputs])
        self.y, self.residual = y, residual
        self.activation, self.dtype = activation, dtype

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        taken = len(self.inputs)
        floats = [
            each.dequantize(q) if isinstance(each, ExplicitQParams) else q
            for each, q in zip(self.inputs, args, strict=False)
        ]
        rest = args[taken:] if self.residual is None else args[taken:-1]
        result = self.operator(*floats, *rest, **kwargs)
        if self.residual is not None:
            result = result + self.residual.dequantize(args[-1])
        result = clamped(result, self.activation)
        return as_dtype(result, self.dtype) if self.y is None else self.y.quantize(result)

    def extra_repr(self) -> str:
        parts = [] if isinstance(self.operator, nn.Module) else [name_of(self.operator)]
        return ", ".join(parts if self.activation is None else [*parts, f"activation={self.activation}"])


def clamped(x: Tensor, activation: Clamp | None) -> Tensor:
    """Clamp by the function that compilers and runtimes look for."""
    if activation is None:
        return x
    if activation.low == 0 and activation.high is None:
        return F.relu(x)
    if activation.low is not None and activation.high is not None:
        return F.hardtanh(x, activation.low, activation.high)
    return activation(x)


def name_of(function: Run) -> str:
    """Name a function for ``print(module)``."""
    return getattr(function, "__name__", None) or str(function)


class Convolution(nn.Module):
    """A float convolution whose weight is dequantized in each call.

    Buffers: ``weight`` int8 [C_out, C_in / groups, *kernel_size], ``bias`` float32 [C_out] or None.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, qparams: ExplicitQParams, bias: Tensor | None, geometry: ConvGeometry) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().clone())
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.weight_qparams = qparams
        self.geometry = geometry

    def forward(self, x: Tensor) -> Tensor:
        geometry, padding = self.geometry, self.geometry.before
        if geometry.padding_mode != "zeros" or geometry.before != geometry.after:
            axes = tuple(zip(geometry.before, geometry.after, strict=True))
            sides = [width for axis in reversed(axes) for width in axis]
            x = F.pad(x, sides, "constant" if geometry.padding_mode == "zeros" else geometry.padding_mode)
            padding = (0,) * geometry.spatial
        convolve = (F.conv1d, F.conv2d, F.conv3d)[geometry.spatial - 1]
        weight = self.weight_qparams.dequantize(self.weight)
        return convolve(x, weight, self.bias, geometry.stride, padding, geometry.dilation, geometry.groups)


class TransposedConvolution(nn.Module):
    """A float transposed convolution whose weight is dequantized in each call.

    Buffers: ``weight`` int8 [C_in, C_out / groups, *kernel_size], ``bias`` float32 [C_out] or None.

    Args:
        sizes: Stride, padding, output padding and dilation along each axis.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        qparams: ExplicitQParams,
        bias: Tensor | None,
        sizes: Mapping[str, tuple[int, ...]],
        groups: int,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().clone())
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.weight_qparams = qparams
        self.sizes, self.groups = dict(sizes), groups

    def forward(self, x: Tensor) -> Tensor:
        convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.weight.dim() - 3]
        weight = self.weight_qparams.dequantize(self.weight)
        return convolve(x, weight, self.bias, groups=self.groups, **self.sizes)


class Linear(nn.Module):
    """A float linear layer whose weight is dequantized in each call.

    Buffers: ``weight`` int8 [C_out, C_in], ``bias`` float32 [C_out] or None.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, qparams: ExplicitQParams, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().clone())
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.weight_qparams = qparams

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_qparams.dequantize(self.weight), self.bias)


class WeightLayer(nn.Module):
    """A layer of torch whose weight is dequantized in each call; it takes all that the layer takes.

    Buffer: ``weight``, integers of the shape of the layer's weight.

    Args:
        layer: The layer, which loses its weight.
        kind: The class of torch whose ``forward`` runs.
        weight: Integers.
        qparams: Of the weight.
        dtype: Of the float weight.
    """

    weight: Tensor

    def __init__(
        self,
        layer: nn.Module,
        kind: type[nn.Module],
        weight: Tensor,
        qparams: ExplicitQParams | FloatZeroPoints,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.layer, self.kind, self.dtype = layer, kind, dtype
        self.register_buffer("weight", weight.detach().clone(memory_format=torch.preserve_format))
        self.weight_qparams = qparams

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.kind is nn.Embedding and isinstance(self.weight_qparams, FloatZeroPoints):
            return as_dtype(self.weight_qparams.rows(self.weight, input), self.dtype)
        weight = as_dtype(self.weight_qparams.dequantize(self.weight), self.dtype)
        return self.kind.forward(WithWeight(self.layer, weight), input, *args, **kwargs)
