"""Constructors with some of their arguments filled in, as ``with_args`` of torch.ao gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any


class PartialConstructor:
    """A class with some of its arguments filled in; calling it makes a new object each time.

    Attributes are those of torch.ao's: ``p`` is a ``functools.partial``; ``callable_args`` holds functions whose
    results are arguments, called when the object is made. As in torch.ao, two of them are equal if they are one object;
    ``qconfig_equals`` compares what they hold.
    """

    def __init__(self, p: partial[Any], callable_args: Mapping[str, Callable[[], Any]] | None = None) -> None:
        self.p = p
        self.callable_args = dict(callable_args or {})

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        made = {name: make() for name, make in self.callable_args.items() if name not in keywords}
        return self.p(*args, **{**made, **keywords})

    def with_args(self, **keywords: Any) -> PartialConstructor:
        """Return a new constructor with these arguments filled in too; they win over those set earlier."""
        return PartialConstructor(partial(self.p, **keywords), self.callable_args)

    def with_callable_args(self, **makers: Callable[[], Any]) -> PartialConstructor:
        """Return a new constructor that calls these functions for arguments whenever it makes an object."""
        return PartialConstructor(self.p, {**self.callable_args, **makers})

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.p.keywords.items())
        return f"{getattr(self.p.func, '__name__', self.p.func)}.with_args({arguments})"


class WithArgs:
    """Adds the two ways to fill in arguments of a class."""

    @classmethod
    def with_args(cls, **keywords: Any) -> Any:
        """Return a constructor with these arguments filled in, for a ``QConfig``."""
        return PartialConstructor(partial(cls, **keywords))

    @classmethod
    def with_callable_args(cls, **makers: Callable[[], Any]) -> Any:
        """Return a constructor that calls these functions for arguments whenever it makes an object."""
        return PartialConstructor(partial(cls), makers)
