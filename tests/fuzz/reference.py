"""Runs the Python references of all operators in place of their native kernels, in this process."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ELSEWHERE = torch._C.DispatchKeySet(torch._C.DispatchKey.IPU)
"""A device that nobody has kernels for: operators run as their reference there, on whatever tensors they are given."""


class ReferenceKernels(TorchDispatchMode):
    """While it is entered, operators of fxquant run as on a machine without the native library."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "fxquant":
            return func(*args, **(kwargs or {}))
        with self:  # some references call other operators
            return func.redispatch(ELSEWHERE, *args, **(kwargs or {}))
