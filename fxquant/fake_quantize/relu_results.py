"""Lets the ReLU before a fake-quantize module keep a byte for each value, where it would keep its result.

The layer after the module keeps fake-quantized values for its gradient. ReLU only asks where its result is positive,
but by itself keeps the result, four bytes for each value that nobody else reads.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

_RELU = "ReluBackward0"


def keep_where_positive(x: Tensor) -> None:
    """Pack what autograd keeps of ``x``, the result of a ReLU, to booleans; gradients are the same to the bit.

    Nothing happens where ``x`` is no such result, where hooks of saved tensors are set already, as by
    ``torch.autograd.graph.saved_tensors_hooks``, and while a graph is compiled or transformed.

    Args:
        x: Of any shape and floating dtype.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return
    node: Any = x.grad_fn
    if node is None or type(node).__name__ != _RELU:
        return
    with suppress(RuntimeError):  # hooks are set already, or the graph was freed by a backward pass
        node._raw_saved_result.register_hooks(_is_passed, partial(_as_result, x.dtype))


def _is_passed(result: Tensor) -> Tensor:
    """Tell where the gradient passes: NaN is not below 0 either."""
    return (result <= 0).logical_not_()


def _as_result(dtype: torch.dtype, passed: Tensor) -> Tensor:
    """Return values to which ReLU gives the same gradient as to its result: 0 and 1."""
    return passed.to(dtype)
