"""Argument checks of the references and fakes: the words of csrc/common/checks.h, in Python.

A native kernel makes its own checks, in C++ and as a RuntimeError; here they are a KernelError, which is one too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError


def check_axis(op: str, axis: int, dim: int) -> int:
    """Return ``axis`` as 0 <= axis < dim."""
    if not -dim <= axis < dim:
        raise KernelError(
            f"{op}: axis is out of range", got=axis, expected=f"a dimension of the tensor, which has {dim}"
        )
    return axis % dim


def check_count(op: str, argument: str, values: Tensor, channels: int) -> None:
    """Check that a qparam has one value for each channel."""
    if values.numel() != channels or values.dim() > 1:
        raise KernelError(f"{op}: {argument} has the wrong shape", got=list(values.shape), expected=[channels])


def check_dtype(op: str, argument: str, tensor: Tensor | torch.dtype, allowed: tuple[torch.dtype, ...]) -> None:
    """Check that the dtype of a tensor is one of a few."""
    dtype = tensor.dtype if isinstance(tensor, Tensor) else tensor
    if dtype not in allowed:
        *most, last = (str(each).removeprefix("torch.") for each in allowed)
        expected = f"{', '.join(most)} or {last}" if most else last
        raise KernelError(f"{op}: {argument} has the wrong dtype", got=dtype, expected=expected)


def check_vector(op: str, argument: str, values: Tensor, dtype: torch.dtype, length: int | None = None) -> None:
    """Check the dtype of a vector, and its length. None: it is what says how many output channels there are."""
    check_dtype(op, argument, values, (dtype,))
    if values.dim() != 1 or length not in (None, values.numel()):
        expected = f"[{'output channels' if length is None else length}]"
        raise KernelError(f"{op}: {argument} has the wrong shape", got=list(values.shape), expected=expected)


def check_packed_weight(op: str, weight: Tensor, packed: list[int]) -> None:
    """Check that a weight is one that ``pack_weight`` made for the other arguments: int8, of the shape ``packed``."""
    check_dtype(op, "weight", weight, (torch.int8,))
    if list(weight.shape) != packed:
        raise KernelError(
            f"{op}: weight has the wrong shape",
            got=list(weight.shape),
            expected=f"{packed}, as pack_weight gives it",
        )


def check_limits(op: str, quant_min: int, quant_max: int, dtype: torch.dtype = torch.int32) -> None:
    """Check that the limits are in order and fit an integer dtype."""
    if quant_min > quant_max:
        got = f"{quant_min} and {quant_max}"
        raise KernelError(f"{op}: quant_min is above quant_max", got=got, expected="quant_min <= quant_max")
    range_ = torch.iinfo(dtype)
    if quant_min < range_.min or quant_max > range_.max:
        raise KernelError(
            f"{op}: quant_min and quant_max do not fit the integers they limit",
            got=f"{quant_min} and {quant_max}",
            expected=f"{range_.min} to {range_.max}",
        )


def check_zero_points(op: str, zero_point: Tensor | int, quant_min: int, quant_max: int) -> None:
    """Check that every zero point lies within the limits. On a GPU this waits, which the native kernels avoid."""
    values = [zero_point] if isinstance(zero_point, int) else zero_point.tolist()
    for value in values if isinstance(values, list) else [values]:
        if not quant_min <= value <= quant_max:
            raise KernelError(
                f"{op}: a zero point lies outside [quant_min, quant_max]",
                got=value,
                expected=f"{quant_min} to {quant_max}",
            )


def check_gradient(op: str, grad: Tensor, input: Tensor) -> None:
    """Check that a gradient has the dtype and the shape of what it belongs to."""
    if grad.dtype != input.dtype:
        expected = f"{input.dtype}, as input"
        raise KernelError(f"{op}: grad has the wrong dtype", got=grad.dtype, expected=expected)
    if grad.shape != input.shape:
        expected = f"{list(input.shape)}, as input"
        raise KernelError(f"{op}: grad has the wrong shape", got=list(grad.shape), expected=expected)
