"""Which results are the same for all inputs of the example's shapes, so that code may branch on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_QUESTIONS = (
    "size dim ndimension numel nelement stride element_size storage_offset is_contiguous is_floating_point is_complex "
    "get_device shape ndim dtype device layout itemsize nbytes names is_cuda is_cpu len result_type"
)
SHAPE_QUESTIONS = frozenset(_QUESTIONS.split())
"""Methods, functions and attributes that answer from shape, dtype and device alone."""

_BY_VALUES = "nonzero argwhere masked_select unique unique_consecutive bincount nms batched_nms item tolist"
SHAPED_BY_VALUES = frozenset(_BY_VALUES.split())
"""Operators whose result has a shape that depends on values, or is a value."""

MASKS = (torch.bool, torch.uint8)
"""Indexing with a tensor of these picks as many elements as are true."""


def is_fixed(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> bool:
    """Whether a call gives the same shape (if it gives tensors), or the same value (else), whatever the values are.

    Args:
        target: Function, or name of a method.
        args: Arguments, on the example.
        kwargs: Keyword arguments, on the example.
        value: The result on the example.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name in SHAPED_BY_VALUES:
        return False
    if name in ("getitem", "__getitem__", "contains") and not isinstance(args[0], Tensor):
        return True  # of a list or a dict: as settled as that is
    if name == "getattr":
        name = args[1]
    if _holds_tensor(value):
        if name in ("getitem", "__getitem__"):
            return not _holds_tensor(args[1], MASKS)
        if name == "where":
            return len(args) + len(kwargs) > 1
        if name == "repeat_interleave":
            return not _holds_tensor((args[1:], kwargs)) or "output_size" in kwargs
        return True
    if name in ("getitem", "__getitem__", "get") and not isinstance(args[0], Tensor):
        return True
    return name in SHAPE_QUESTIONS or not _holds_tensor((args, kwargs))


def _holds_tensor(value: Any, dtypes: tuple[torch.dtype, ...] = ()) -> bool:
    """Whether there is a tensor (of one of these dtypes, if any) in a structure."""
    if isinstance(value, Tensor):
        return not dtypes or value.dtype in dtypes
    if isinstance(value, dict):
        value = tuple(value.values())
    return isinstance(value, (tuple, list)) and any(_holds_tensor(item, dtypes) for item in value)
