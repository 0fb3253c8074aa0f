"""What a body may have changed is put back if it raises."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_LISTS = (list, deque)
_CONTAINERS = (*_LISTS, dict, set)
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"_buffers", "_parameters"}


@contextmanager
def undone_on_error(holders: Sequence[object], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put back, if the body raises, the attributes of ``holders`` and the values of ``tensors``.

    Of attributes that are lists, dicts or sets the items are put back, of a module's buffers and of attributes that are
    tensors the values, in the memory that they have. So is the class of a module.

    Args:
        holders: Modules, each by itself without those inside it, and other objects.
        tensors: What else may be written to.
    """
    classes = [(holder, type(holder)) for holder in holders if isinstance(holder, nn.Module)]
    attributes = [(held, dict(held)) for holder in holders if (held := getattr(holder, "__dict__", None)) is not None]
    contents = []
    found = list(tensors)
    for _, before in attributes:
        found += [buffer for buffer in before.get("_buffers", {}).values() if buffer is not None]
        for name, value in before.items():
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, _CONTAINERS) and name not in _OF_EVERY_MODULE:
                contents.append((value, copy.copy(value)))
    values = [(tensor, tensor.detach().clone()) for tensor in found]
    try:
        yield
    except BaseException:
        for tensor, value in values:
            _restore(tensor, value)
        for container, items in (*attributes, *contents):
            _refill(container, items)
        for module, kind in classes:
            if type(module) is not kind:
                module.__class__ = kind
        raise


def unchanged_on_error(model: nn.Module) -> AbstractContextManager[None]:
    """Put back all of a model if the body raises; until then its tensors lie in memory twice."""
    return undone_on_error(tuple(model.modules()), tuple(model.parameters()))


def _restore(tensor: Tensor, value: Tensor) -> None:
    """Write a value back. What has another shape now gets other memory; of the rest, others may know where it lies."""
    if tensor.shape == value.shape and tensor.dtype == value.dtype and not tensor.is_inference():
        with torch.no_grad():
            tensor.copy_(value)
    else:
        tensor.data = value


def _refill(container: Any, items: Iterable[Any]) -> None:
    container.clear()
    (container.extend if isinstance(container, _LISTS) else container.update)(items)
