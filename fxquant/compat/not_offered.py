"""Stands for the names of torch.ao that are not offered: they can be imported, and raise when they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

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


def refuse_observers(kind: str, *given: Any) -> None:
    """Refuse observers where constructors of observers are wanted, in torch.ao's words.

    Raises:
        ValueError: one of ``given`` is an observer.
    """
    if any(isinstance(each, nn.Module) for each in given):
        raise ValueError(
            f"{kind} received observer instance, please pass observer class instead. "
            "Use MyObserver.with_args(x=1) to override arguments to constructor if needed"
        )
