"""Modes under which calls may look at tensors, and may not do what a program cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NotRecordableError(Exception):
    """An operator computes something that no program can hold."""


class Mode(TorchDispatchMode):
    """The base of the modes here, under which no call is compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would import the compiler, which takes seconds; nothing is compiled in here


class ForbidCompute(Mode):
    """Lets calls look at tensors, at sizes or through views, and refuses to compute.

    Inside it operators that compute raise ``NotRecordableError``.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return view_or_metadata(self, func, args, kwargs or {})


class ForbidRandom(Mode):
    """Lets calls compute what is the same each time, and refuses random numbers.

    Inside it operators that draw raise ``NotRecordableError``.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise NotRecordableError(str(func))
        return func(*args, **(kwargs or {}))


def view_or_metadata(mode: TorchDispatchMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an operator that only takes views or asks for sizes, or is made of such.

    Raises:
        NotRecordableError: it does more.
    """
    if func._can_decompose():  # under torch.inference_mode operators that are made of others come whole
        with mode:
            return func.decompose(*args, **kwargs)
    returns = func._schema.returns
    if not returns or any(each.alias_info is None or each.alias_info.is_write for each in returns):
        raise NotRecordableError(f"{func} is no native loop")
    return func(*args, **kwargs)
