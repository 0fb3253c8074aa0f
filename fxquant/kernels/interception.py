"""Tells whether torch hands operators to something else before they run."""

from __future__ import annotations

import torch


def is_intercepted() -> bool:
    """Tell whether a mode, a transform of ``torch.func`` or ``torch.jit.trace`` sees operators in this thread."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._are_functorch_transforms_active()
        or torch._C._is_tracing()
    )
