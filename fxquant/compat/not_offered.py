"""Stands for the names of torch.ao that are not offered: they can be imported, and raise when they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxquant.compat.migration import NOT_OFFERED
from fxquant.errors import NotOffered


def refusing(name: str) -> Callable[..., Any]:
    """Return what stands for a name of torch.ao that is not offered: it raises when it is called."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotOffered(f"{name} of torch.ao is not offered", hint=NOT_OFFERED[name])

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Raise ``NotOffered``: {NOT_OFFERED[name]}."
    return refuse


def refusal_of(name: str) -> Any:
    """Return what stands for a name, as the ``__getattr__`` of a module of this package.

    Raises:
        AttributeError: torch.ao has no such name either.
    """
    if name in NOT_OFFERED:
        return refusing(name)
    raise AttributeError(f"torch.ao.quantization has no name {name!r} that fxquant.compat knows")
