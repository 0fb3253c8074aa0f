"""Defines what ``with_args`` gives: a class with some of its arguments filled in."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fxquant.errors import SpecError
from fxquant.plan.spec import CONSTRUCTOR, checked_observer
from fxquant.registry import did_you_mean


def construct(maker: Any, arguments: Mapping[str, Any]) -> Any:
    """Call a class, what its ``with_args`` gave, or any other maker.

    Raises:
        SpecError: a class, or what ``with_args`` gave, takes no such argument; what it makes is no observer, or one
            whose values are not rounded.
    """
    if not callable(maker):
        raise SpecError("observer= is no constructor", got=repr(maker), expected=CONSTRUCTOR)
    if isinstance(maker, (type, Constructor)):
        maker = Constructor(maker, arguments) if isinstance(maker, type) else maker.with_args(**arguments)
        arguments = {}
    made = checked_observer(maker(**arguments), "observer=")
    if made.scheme is None:
        raise SpecError(
            "this observer has no qparams that could be simulated",
            got=type(made).__name__,
            expected="an observer with an integer dtype",
        )
    return made


@dataclass(frozen=True, slots=True, repr=False)
class Constructor:
    """A class with some of its arguments filled in; calling it makes a new object each time.

    Unlike ``functools.partial``, two that hold the same are equal, and a keyword that the class does not take is
    refused where it is written.

    Example:
        >>> from fxquant.observers import MinMaxObserver
        >>> MinMaxObserver.with_args(bits=4).with_args(eps=1e-6)
        MinMaxObserver.with_args(bits=4, eps=1e-06)
    """

    target: type
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        signature = inspect.signature(self.target)
        try:
            signature.bind_partial(**self.arguments)
        except TypeError as error:
            unknown = next((name for name in self.arguments if name not in signature.parameters), "")
            raise SpecError(
                f"{self.target.__name__} takes no argument {unknown!r}",
                expected=", ".join(signature.parameters),
                hint=did_you_mean(unknown, list(signature.parameters)),
            ) from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **{**self.arguments, **kwargs})

    def with_args(self, **arguments: Any) -> Constructor:
        """Return a new constructor with ``arguments`` filled in too; they win over those set earlier."""
        return Constructor(self.target, {**self.arguments, **arguments})

    def __repr__(self) -> str:
        return f"{self.target.__name__}.with_args({', '.join(f'{k}={v!r}' for k, v in self.arguments.items())})"
