"""``fxquant::dynamic_linear``: floats times an int8 weight, in integers; each call measures and quantizes its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.kernels.arithmetic import float32
from fxquant.kernels.call import OperatorCall, define_operator
from fxquant.kernels.checks import check_packed_weight, check_vector
from fxquant.kernels.conv.packing import PackedLayout, PackedWeight, zero_point_correction
from fxquant.kernels.linear.per_token_linear import reference as per_token_linear
from fxquant.kernels.linear.reference import per_token_reference
from fxquant.kernels.quantize.quantize_per_token import check_choice, quantize_per_token
from fxquant.kernels.quantize.quantize_per_token import reference as quantize_reference


@dataclass(eq=False, repr=False)
class DynamicLinearCall(OperatorCall):
    """Choose qparams for ``x`` or for each of its rows, quantize it, multiply by a weight matrix, and clamp.

    It is ``quantize_per_token``, with the whole of ``x`` as one row or with each row by itself, then
    ``per_token_linear``, then the limits of an activation. Infinities, NaN and values without a range are treated as
    ``quantize_per_token`` treats them.

    Returns:
        float32 [..., out_features], contiguous.

    Raises:
        RuntimeError: an argument is not as the fields say; the message names it.
    """

    op: ClassVar[str] = "fxquant::dynamic_linear"

    x: Tensor
    """float32, float64, float16 or bfloat16 [..., in_features], any strides."""
    per_token: bool
    """Each row has a scale and a zero point; otherwise the whole of ``x`` has one of each."""
    eps: float
    """Smallest scale. This and the next four are as ``quantize_per_token`` takes them."""
    quant_min: int
    quant_max: int
    middle: int | None
    dtype: torch.dtype
    weight: Tensor
    """int8 [out_features, in_features], packed by :func:`~fxquant.kernels.conv.packing.pack_weight`."""
    zero_point_correction: Tensor
    """int32 [out_features]. This and the rest of the vectors are as ``per_token_linear`` takes them."""
    weight_sums: Tensor
    """int32 [out_features]."""
    scale: Tensor
    """float32 [out_features], of the weight."""
    bias: Tensor
    """float32 [out_features]."""
    low: float
    """Smallest value of the result; ``-inf``: no limit. NaN stays NaN."""
    high: float
    """Largest value of the result."""

    def empty_result(self) -> Tensor:
        op, x, scale = self.op, self.x, self.scale
        if x.dim() == 0:
            raise KernelError(f"{op}: x has no dimension", got=[], expected="[..., columns]")
        check_choice(self)
        if not self.low <= self.high:
            got = f"[{self.low:f}, {self.high:f}]"
            raise KernelError(f"{op}: low and high are no limits", got=got, expected="low <= high")
        check_vector(op, "scale", scale, torch.float32)
        channels = scale.numel()
        check_packed_weight(op, self.weight, PackedLayout.of(channels, x.shape[-1], ()).shape)
        check_vector(op, "zero_point_correction", self.zero_point_correction, torch.int32, channels)
        check_vector(op, "bias", self.bias, torch.float32, channels)
        check_vector(op, "weight_sums", self.weight_sums, torch.int32, channels)
        return torch.empty([*x.shape[:-1], channels], dtype=torch.float32, device=x.device)

    def reference(self) -> Tensor:
        y = self.empty_result()
        if y.numel() == 0:
            return y
        rows = self.x.reshape(y.numel() // y.shape[-1], self.x.shape[-1])
        measured = rows if self.per_token else rows.reshape(1, rows.numel())
        choice = (self.eps, self.quant_min, self.quant_max, self.middle, self.dtype)
        q, scale, zero_point = quantize_reference(measured, *choice)
        qparams = scale.expand(len(rows)), zero_point.expand(len(rows))
        layer = (self.weight, self.zero_point_correction, self.weight_sums, self.scale, self.bias)
        real = per_token_linear(q.view(rows.shape), *qparams, *layer).view(y.shape)
        return _clamped(real, self.low, self.high)


def _clamped(real: Tensor, low: float, high: float) -> Tensor:
    """Clamp float32 values to float32 limits; NaN stays NaN."""
    lowest, highest = (torch.tensor(float32(limit), device=real.device) for limit in (low, high))
    real = torch.where(real < lowest, lowest, real)  # NaN is not below
    return torch.where(real > highest, highest, real)


dynamic_linear, reference = define_operator(DynamicLinearCall)

Choice = tuple[float, int, int, int | None, torch.dtype]
"""Smallest scale, limits, zero point of symmetric quantization, and dtype."""

NO_LIMITS = (-torch.inf, torch.inf)


class DynamicLinear:
    """A packed weight matrix that quantizes float values, and multiplies them.

    Calling it with floats [..., in_features] gives float32 [..., out_features]. Several threads may call it.

    Args:
        weight: int8 [out_features, in_features], zero point 0.
        weight_scale: float32 [out_features], or [1] for one scale for all.
        bias: float32 [out_features], or None.
        choice: How inputs are quantized: what ``quantize_per_token`` takes beside its input.
        per_token: Each row has a range of its own.
        limits: Smallest and largest value of the result.
    """

    def __init__(
        self,
        weight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        choice: Choice,
        per_token: bool = False,
        limits: tuple[float, float] = NO_LIMITS,
    ) -> None:
        packed = PackedWeight.of(weight)
        self.unpacked = packed.unpacked
        """Gives the weight again."""
        scale = weight_scale.expand(len(weight)).contiguous()
        self.layer = (
            packed.values,
            zero_point_correction(weight, choice[-1], 0),
            -zero_point_correction(weight, torch.uint8, 1),
            scale,
            torch.zeros_like(scale) if bias is None else bias,
        )
        """What ``per_token_linear`` takes beside its input and the qparams of that."""
        self._arguments = (per_token, *choice, *self.layer, *limits)
        self._dynamic_linear = torch.ops.fxquant.dynamic_linear.default

    def __call__(self, x: Tensor) -> Tensor:
        return self._dynamic_linear(x, *self._arguments)

    def reference(self, x: Tensor) -> Tensor:
        """Do the same in plain torch."""
        return reference(x, *self._arguments)


@dataclass(frozen=True, slots=True)
class DynamicLinearByReference:
    """The same in plain torch, for weights with zero points, which the operator does not take.

    ``weight`` is int8 [out_features, in_features]; zero point and scale have [out_features] or [1].
    """

    weight: Tensor
    weight_zero_point: Tensor
    weight_scale: Tensor
    bias: Tensor | None
    choice: Choice
    per_token: bool = False
    limits: tuple[float, float] = NO_LIMITS

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(x, *quantize_per_token(self._measured(x), *self.choice))

    def reference(self, x: Tensor) -> Tensor:
        """Quantize in plain torch, too."""
        return self._multiply(x, *quantize_reference(self._measured(x), *self.choice))

    def _measured(self, x: Tensor) -> Tensor:
        return x if self.per_token else x.reshape(1, x.numel())

    def _multiply(self, x: Tensor, q: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        rows = x.shape[:-1].numel()
        qparams = scale.expand(rows), zero_point.expand(rows)
        weight = self.weight, self.weight_zero_point, self.weight_scale
        return _clamped(per_token_reference(q.view(x.shape), *qparams, *weight, self.bias), *self.limits)
