"""The operators of ``quantized_decomposed``: registered by torch.ao where it has them, else here, by the same schemas.

Compilers and runtimes look for these operators by name. One process can define a schema once, so what is there already
is used, then the module of torch.ao is imported, and only what is still missing is defined.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "quantized_decomposed"

HOME = "torch.ao.quantization.fx._decomposed"
"""The module of torch that registers the operators. torch has announced that it will be removed."""

_LOCK = threading.Lock()
_libraries: list[torch.library.Library] = []
"""What was defined here, which lasts as long as this list holds it."""


def quantize_per_tensor(
    input: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    """``clamp(round(x * (1 / scale)) + zero_point, quant_min, quant_max)``; numbers, or tensors of one element."""
    steps = torch.round(input.float() * _float32(1.0 / scale)) + zero_point
    return steps.clamp(quant_min, quant_max).to(dtype)


def dequantize_per_tensor(
    input: Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``(q - zero_point) * scale``; numbers, or tensors of one element."""
    values = input.to(out_dtype or torch.float32)
    return (values - zero_point) * (scale.to(values.dtype) if isinstance(scale, Tensor) else scale)


def choose_qparams(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Scale, float64 [1], and zero point, int64 [1], of the range of all values and 0."""
    low, high = (end.reshape(1) for end in torch.aminmax(input.float()))
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    scale = ((high - low) / float(quant_max - quant_min)).clamp(min=eps)
    zero_point = (quant_min - torch.round(low / scale).to(torch.int)).clamp(quant_min, quant_max)
    return scale.double(), zero_point.to(torch.int64)


def choose_qparams_symmetric(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Do the same for a range that reaches as far below 0 as above."""
    low, high = (end.reshape(1) for end in torch.aminmax(input.float()))
    largest = torch.maximum(-low.clamp(max=0.0), high.clamp(min=0.0))
    scale = (largest / (float(quant_max - quant_min) / 2)).clamp(min=eps)
    middle = 0 if dtype.is_signed else (quant_min + quant_max + 1) // 2
    return scale.double(), torch.full_like(scale, middle, dtype=torch.int64)


def quantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Tensor:
    """Do the same with a scale for each index of ``axis``."""
    steps = torch.round(input.float() * (1.0 / _along(scales, input, axis))) + _along(zero_points, input, axis)
    return steps.clamp(quant_min, quant_max).to(dtype)


def dequantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Do the inverse, with a scale for each index of ``axis``."""
    values = input.float() if zero_points is None else input.float() - _along(zero_points, input, axis)
    return (values * _along(scales, input, axis)).to(out_dtype or torch.float32)


def dequantize_per_channel_group(
    w_int8: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int = 128,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Do the inverse for a matrix, with a scale for each ``group_size`` values of a row."""
    groups = w_int8.reshape(-1, group_size)
    steps = groups if zero_points is None else groups.sub(zero_points.reshape(-1, 1))
    return steps.mul(scales.reshape(-1, 1)).reshape_as(w_int8).to(output_dtype)


def dequantize_per_token(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Do the inverse, with a scale for each row: ``scales`` and ``zero_points`` are [..., 1]."""
    return ((input - zero_points) * scales).to(output_dtype)


def _float32(number: Any) -> Any:
    return number.float() if isinstance(number, Tensor) else number


def _along(qparam: Tensor, x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.dim()
    shape[axis] = -1
    return qparam.view(shape)


def _same_shape(input: Tensor, *arguments: Any) -> Tensor:
    """Return an integer tensor of the same shape; the dtype is the last argument."""
    return torch.empty_like(input, dtype=arguments[-1])


def _same_shape_float(input: Tensor, *arguments: Any, out_dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(input, dtype=out_dtype or torch.float32)


def _same_shape_group(input: Tensor, *arguments: Any) -> Tensor:
    *_, output_dtype = arguments
    return torch.empty_like(input, dtype=output_dtype)


def _one_of_each(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return input.new_empty(1, dtype=torch.float64), input.new_empty(1, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class _Operator:
    schema: str
    run: Callable[..., Any]
    fake: Callable[..., Any]

    @property
    def name(self) -> str:
        """Return the name with the overload: ``choose_qparams.tensor``."""
        return self.schema.split("(")[0]


_ONE = "Tensor input, {0} scale, {1} zero_point, int quant_min, int quant_max, ScalarType dtype"
_CHANNELS = (
    "Tensor input, Tensor scales, Tensor{} zero_points, int axis, int quant_min, int quant_max, ScalarType dtype"
)
_CHOICE = "Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype"
_OUT = ", *, ScalarType? out_dtype=None"

_OPERATORS = (
    _Operator(f"quantize_per_tensor({_ONE.format('float', 'int')}) -> Tensor", quantize_per_tensor, _same_shape),
    _Operator(
        f"quantize_per_tensor.tensor({_ONE.format('Tensor', 'Tensor')}) -> Tensor", quantize_per_tensor, _same_shape
    ),
    _Operator(
        f"dequantize_per_tensor({_ONE.format('float', 'int')}{_OUT}) -> Tensor",
        dequantize_per_tensor,
        _same_shape_float,
    ),
    _Operator(
        f"dequantize_per_tensor.tensor({_ONE.format('Tensor', 'Tensor')}{_OUT}) -> Tensor",
        dequantize_per_tensor,
        _same_shape_float,
    ),
    _Operator(f"choose_qparams.tensor({_CHOICE}) -> (Tensor, Tensor)", choose_qparams, _one_of_each),
    _Operator(
        f"choose_qparams_symmetric.tensor({_CHOICE}) -> (Tensor, Tensor)", choose_qparams_symmetric, _one_of_each
    ),
    _Operator(f"quantize_per_channel({_CHANNELS.format('')}) -> Tensor", quantize_per_channel, _same_shape),
    _Operator(
        f"dequantize_per_channel({_CHANNELS.format('?')}{_OUT}) -> Tensor", dequantize_per_channel, _same_shape_float
    ),
    _Operator(
        "dequantize_per_channel_group(Tensor input, Tensor scales, Tensor? zero_points, int quant_min, int quant_max, "
        "ScalarType dtype, int group_size, ScalarType output_dtype) -> Tensor",
        dequantize_per_channel_group,
        _same_shape_group,
    ),
    _Operator(
        "dequantize_per_token(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, "
        "ScalarType dtype, ScalarType output_dtype) -> Tensor",
        dequantize_per_token,
        _same_shape_group,
    ),
)


def register() -> None:
    """Make sure that every operator exists. Later calls find them and do nothing."""
    if not any(map(_is_missing, _OPERATORS)):
        return
    with _LOCK:
        if any(map(_is_missing, _OPERATORS)):
            with suppress(ImportError):
                importlib.import_module(HOME)
        for operator in filter(_is_missing, _OPERATORS):
            library = torch.library.Library(NAMESPACE, "FRAGMENT")
            library.define(operator.schema)
            library.impl(operator.name, operator.run, "CompositeExplicitAutograd")
            library.impl(operator.name, operator.fake, "Meta")
            _libraries.append(library)


def _is_missing(operator: _Operator) -> bool:
    name, _, overload = operator.name.partition(".")
    try:
        torch._C._get_schema(f"{NAMESPACE}::{name}", overload)
    except RuntimeError:
        return True
    return False
