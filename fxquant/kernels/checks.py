"""Argument checks of the references and fakes: the words of csrc/common/checks.h and qparams.h, in Python.

A native kernel makes its own checks, in C++ and as a RuntimeError; here they are a KernelError, which is one too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fxquant.errors import KernelError


def check_axis(op: str, axis: int, dim: int) -> int:
    """``axis`` as 0 <= axis < dim."""
    if not -dim <= axis < dim:
        raise KernelError(f"{op}: axis is out of range", got=axis, expected=f"a dimension of x, which has {dim}")
    return axis % dim


def check_count(op: str, argument: str, values: Tensor, channels: int) -> None:
    """A qparam has one value for each channel."""
    if values.numel() != channels or values.dim() > 1:
        raise KernelError(f"{op}: {argument} has the wrong shape", got=list(values.shape), expected=[channels])


def check_dtype(op: str, argument: str, tensor: Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    """The dtype of a tensor is one of a few."""
    if tensor.dtype not in allowed:
        *most, last = (str(dtype).removeprefix("torch.") for dtype in allowed)
        expected = f"{', '.join(most)} or {last}" if most else last
        raise KernelError(f"{op}: {argument} has the wrong dtype", got=tensor.dtype, expected=expected)
