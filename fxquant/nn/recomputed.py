"""Lets autograd compute a rounded weight again in the backward pass, in place of keeping it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _View(NamedTuple):
    """Says how an operator looks at the tensor: a linear layer keeps it transposed."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def _hooks_are_forbidden() -> bool:
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is not None
    )


def _as_it_is(saved: Any) -> Any:
    return saved


def recomputed(value: Tensor, source: Tensor, make: Callable[[], Tensor]) -> AbstractContextManager[Any]:
    """While this holds, autograd keeps no copy of ``value``, but calls ``make`` when it asks for it.

    Args:
        value: What operators in the block get, and would keep, as it is or as a view.
        source: The parameter that it is made of. If it changes before the backward pass, that raises, as autograd does.
        make: Gives ``value`` again, to the bit, and laid out alike.

    Compiled code does without: what is kept is then the compiler's choice. So do transforms of ``torch.func``, and
    blocks where hooks are forbidden.
    """
    if not (torch.is_grad_enabled() and value.requires_grad) or _hooks_are_forbidden():
        return nullcontext()
    storage, version = value.untyped_storage().data_ptr(), source._version

    outer: Any = torch._C._autograd._top_saved_tensors_default_hooks(
        True
    )  # checkpointing, offloading: theirs is the rest
    keep, give_back = outer or (_as_it_is, _as_it_is)

    def pack(tensor: Tensor) -> Any:
        if tensor.untyped_storage().data_ptr() != storage:
            return keep(tensor)
        return _View(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def unpack(saved: Any) -> Tensor:
        if not isinstance(saved, _View):
            return give_back(saved)
        if source._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"a weight is at version {source._version}; expected version {version} instead"
            )
        with torch.no_grad():
            return make().as_strided(*saved)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
