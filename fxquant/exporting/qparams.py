"""Qparams as modules: each quantizes and dequantizes by the operators of ``quantized_decomposed``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fxquant.errors import InputError, LoweringError
from fxquant.exporting.decomposed import register
from fxquant.graph.inputs import describe_value
from fxquant.kernels.fake_quantize.affine_qparams import affine_qparams
from fxquant.observers.qparams import middle
from fxquant.observers.ranges import split_groups
from fxquant.plan.spec import Dynamic, QParams


def as_float32(x: Tensor) -> Tensor:
    """As the operators take float values, which know no float64."""
    return x.float() if x.dtype == torch.float64 else x


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast; without a node in an exported graph where there is nothing to do."""
    return x if x.dtype == dtype else x.to(dtype)


class ExplicitQParams(nn.Module):
    """The base. A copy in another process registers the operators before it is called."""

    def __init__(self, qparams: QParams) -> None:
        super().__init__()
        scheme = qparams.scheme
        self.limits = (scheme.quant_min, scheme.quant_max, scheme.dtype)

    def __setstate__(self, state: Any) -> None:
        register()
        super().__setstate__(state)

    def quantize(self, x: Tensor) -> Tensor:
        """From float values to quantized values."""
        raise NotImplementedError(f"{type(self).__name__}.quantize")

    def dequantize(self, q: Tensor) -> Tensor:
        """From quantized values to float32."""
        raise NotImplementedError(f"{type(self).__name__}.dequantize")

    def extra_repr(self) -> str:
        quant_min, quant_max, dtype = self.limits
        return f"{str(dtype).removeprefix('torch.')} [{quant_min}, {quant_max}]"


class PerTensor(ExplicitQParams):
    """One scale and zero point, which stand in the call as numbers.

    Raises:
        LoweringError: the zero point is no whole number.
    """

    def __init__(self, qparams: QParams) -> None:
        super().__init__(qparams)
        self.scale = float(qparams.scale.item())
        self.zero_point = int(whole_numbers(qparams).item())

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What both operators take beside the tensor."""
        return self.scale, self.zero_point, *self.limits

    def quantize(self, x: Tensor) -> Tensor:
        return torch.ops.quantized_decomposed.quantize_per_tensor.default(as_float32(x), *self.arguments)

    def dequantize(self, q: Tensor) -> Tensor:
        return torch.ops.quantized_decomposed.dequantize_per_tensor.default(q, *self.arguments)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()} scale={self.scale:.4g} zero_point={self.zero_point}"


class PerChannel(ExplicitQParams):
    """A scale and a zero point for each index of a dimension.

    Buffers: ``scale`` float32 [C] and ``zero_point`` int64 [C].

    Raises:
        LoweringError: a zero point is no whole number.
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, qparams: QParams, axis: int) -> None:
        super().__init__(qparams)
        self.axis = axis
        self.register_buffer("scale", qparams.scale.detach().clone())
        self.register_buffer("zero_point", whole_numbers(qparams))

    def _apply(self, fn: Any, recurse: bool = True) -> PerChannel:
        scale = self.scale
        super()._apply(fn, recurse)
        self.scale = scale.to(self.scale.device)
        return self

    def quantize(self, x: Tensor) -> Tensor:
        return torch.ops.quantized_decomposed.quantize_per_channel.default(
            as_float32(x), self.scale, self.zero_point, self.axis % x.dim(), *self.limits
        )

    def dequantize(self, q: Tensor) -> Tensor:
        return torch.ops.quantized_decomposed.dequantize_per_channel.default(
            q, self.scale, self.zero_point, self.axis % q.dim(), *self.limits
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()} {len(self.scale)} channels, axis={self.axis}"


class PerGroup(PerChannel):
    """A scale and a zero point for each run of values of a weight along the dimension after the channels.

    Buffers: ``scale`` float32 and ``zero_point`` int64 [C, groups].
    """

    def __init__(self, qparams: QParams, axis: int) -> None:
        super().__init__(qparams, axis)
        self.scheme = qparams.scheme

    def quantize(self, x: Tensor) -> Tensor:
        raise LoweringError("only weights are quantized by groups", got=self.scheme)

    def dequantize(self, q: Tensor) -> Tensor:
        operators = torch.ops.quantized_decomposed
        rows = q.reshape(len(q), -1)
        length = rows.shape[1] // self.scale.shape[1]
        if self.axis % q.dim() == 0 and length > 1:  # then a group lies in one stretch
            values = operators.dequantize_per_channel_group.default(
                rows, self.scale, self.zero_point, *self.limits, length, torch.float32
            )
            return values.reshape(q.shape)
        groups, dimensions = split_groups(q, self.scheme)
        qparams = (self.scale.flatten(), self.zero_point.flatten(), dimensions[0], *self.limits)
        return operators.dequantize_per_channel.default(groups.flatten(*dimensions), *qparams).reshape(q.shape)


class FloatZeroPoints(nn.Module):
    """A scale and a zero point for each row of a table, where the zero points are no whole numbers: no operator of
    ``quantized_decomposed`` takes those to the bit, so rows are dequantized by arithmetic.

    Buffers: ``scale`` and ``zero_point`` float64 [C].
    """

    scale: Tensor
    zero_point: Tensor

    def __init__(self, qparams: QParams) -> None:
        super().__init__()
        self.register_buffer("scale", qparams.scale.detach().double())
        self.register_buffer("zero_point", qparams.zero_point.detach().double())

    def rows(self, q: Tensor, indices: Tensor) -> Tensor:
        """Rows of a table [C, columns] as float32 [..., columns]."""
        indices = indices.long()  # torch.onnx makes an invalid file of others
        scale, zero_point = (qparam[indices].unsqueeze(-1) for qparam in (self.scale, self.zero_point))
        return ((q[indices].double() - zero_point) * scale).float()

    def dequantize(self, q: Tensor) -> Tensor:
        """Return the whole table, float32."""
        return self.rows(q, torch.arange(len(q), device=q.device))

    def _apply(self, fn: Any, recurse: bool = True) -> FloatZeroPoints:
        before = self.scale, self.zero_point
        super()._apply(fn, recurse)
        self.scale, self.zero_point = (qparam.to(self.scale.device) for qparam in before)
        return self


class TakenIntegers(nn.Module):
    """An input that is given as quantized values: it is handed on, and is no node in an exported graph.

    Args:
        name: Of the argument.
        qparams: What the integers stand for.
    """

    def __init__(self, name: str, qparams: QParams) -> None:
        super().__init__()
        self.name, self.scheme = name, qparams.scheme

    def forward(self, q: Tensor) -> Tensor:
        """Raise InputError where integers of another dtype, which are other values, or floats are given."""
        if q.dtype != self.scheme.dtype:
            given, wanted = (str(dtype).removeprefix("torch.") for dtype in (q.dtype, self.scheme.dtype))
            raise InputError(
                f"the input {self.name!r} holds {given} where the model takes quantized values",
                got=describe_value(q),
                expected=f"{wanted}, {self.scheme}",
                hint=f"quantize it first: the converted model's integer_inputs[{self.name!r}] has scale and zero point",
            )
        return q

    def extra_repr(self) -> str:
        return f"{self.name}: {self.scheme}"


class DynamicQParams(nn.Module):
    """Scale and zero point of each call's own values: quantized and dequantized again at once.

    Per token, rows are measured and quantized by arithmetic: the operators that do so round after adding the zero
    point, which gives other values at ties.

    Args:
        policy: Scheme, smallest scale, and whether rows have ranges of their own.
    """

    def __init__(self, policy: Dynamic) -> None:
        super().__init__()
        scheme = policy.scheme
        self.limits = (scheme.quant_min, scheme.quant_max)
        self.eps, self.dtype, self.symmetric = policy.eps, scheme.dtype, scheme.symmetric
        self.middle = middle(scheme)
        self.by_token = policy.per == "token"

    def __setstate__(self, state: Any) -> None:
        register()
        super().__setstate__(state)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float of any shape; the result has its shape and dtype."""
        if not x.numel():
            return x.clone()
        operators = torch.ops.quantized_decomposed
        if self.by_token:
            values = as_float32(x).float()
            finite = torch.where(values.isfinite(), values, 0.0)  # every range holds 0
            low, high = finite.amin(-1, keepdim=True), finite.amax(-1, keepdim=True)
            center = self.middle if self.symmetric else None
            scale, zero_point = affine_qparams(low, high, *self.limits, center, self.eps)
            q = clamped(torch.round(values * (1.0 / scale)) + zero_point, *self.limits).to(self.dtype)
            of_q = (scale, zero_point, *self.limits, self.dtype, torch.float32)
            return as_dtype(operators.dequantize_per_token.default(q, *of_q), x.dtype)
        choose = operators.choose_qparams_symmetric if self.symmetric else operators.choose_qparams
        scale, zero_point = choose.tensor(as_float32(x), *self.limits, self.eps, self.dtype)
        if self.symmetric and not self.dtype.is_signed and self.middle != 128:  # the operator knows 128 alone
            zero_point = torch.full_like(zero_point, self.middle)
        qparams = (scale, zero_point, *self.limits, self.dtype)
        q = operators.quantize_per_tensor.tensor(as_float32(x), *qparams)
        return as_dtype(operators.dequantize_per_tensor.tensor(q, *qparams), x.dtype)


def clamped(q: Tensor, low: int, high: int) -> Tensor:
    """Clamp rounded values; NaN becomes the lower limit."""
    return torch.where(q > low, q, float(low)).clamp(max=float(high))


def operator_of(name: str) -> Any:
    """Find an operator on one scale and zero point by its name."""
    return getattr(torch.ops.quantized_decomposed, name).default


def explicit_qparams(qparams: QParams) -> ExplicitQParams:
    """Make the module for the granularity of some qparams."""
    scheme = qparams.scheme
    if scheme.axis is None:
        return PerTensor(qparams)
    return (PerChannel if scheme.group_size is None else PerGroup)(qparams, scheme.axis)


def weight_qparams(qparams: QParams) -> ExplicitQParams | FloatZeroPoints:
    """Do the same for a weight, whose zero points may be anything.

    Raises:
        LoweringError: they are no whole numbers, and not one for each row.
    """
    scheme, zero_point = qparams.scheme, qparams.zero_point
    by_row = scheme.axis == 0 and scheme.group_size is None
    if by_row and zero_point.is_floating_point() and not torch.equal(zero_point, zero_point.round()):
        return FloatZeroPoints(qparams)
    return explicit_qparams(qparams)


def whole_numbers(qparams: QParams) -> Tensor:
    """Zero points as int64.

    Raises:
        LoweringError: one is no whole number.
    """
    zero_point = qparams.zero_point.detach()
    if zero_point.is_floating_point() and not bool((zero_point == zero_point.round()).all()):
        first = zero_point[zero_point != zero_point.round()][0].item()
        raise LoweringError(
            "a zero point is no whole number",
            got=f"{first:.6g}, {qparams.scheme}",
            expected="whole numbers, which integer operators take",
            hint="an observer without float_qparams, such as PerChannelMinMaxObserver with an affine qscheme",
        )
    return zero_point.to(torch.int64)
