"""A table of named things that refuses duplicates and answers a wrong name with the nearest right one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from fxquant.errors import DuplicateNameError, SpecError, UnknownNameError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Maps names to things of one kind, in the order of registration.

    Example:
        >>> colours = Registry("colour")
        >>> colours.add("red", 0xFF0000)
        >>> sorted(colours)
        ['red']
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T) -> None:
        """Enter ``item`` under ``name``.

        Raises:
            DuplicateNameError: the name is taken; the message shows by what.
            SpecError: it is no text.
        """
        check_name(self._kind, name)
        if name in self._items:
            raise DuplicateNameError(
                f"{self._kind} {name!r} is registered already",
                got=item,
                expected=f"a new name; {name!r} is {self._items[name]!r}",
            )
        self._items[name] = item

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator form of ``add``."""

        def enter(item: T) -> T:
            self.add(name, item)
            return item

        return enter

    def remove(self, name: str) -> None:
        """Forget ``name``: for tests, and for notebooks that redefine a thing.

        Raises:
            UnknownNameError: there is no such name.
        """
        self[name]
        del self._items[name]

    def __getitem__(self, name: str) -> T:
        if isinstance(name, str) and name in self._items:
            return self._items[name]
        raise UnknownNameError(
            f"unknown {self._kind}",
            got=repr(name),
            expected=", ".join(self._items) or "none is registered",
            hint=did_you_mean(name, self._items),
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def check_name(kind: str, name: object) -> None:
    """Refuse a name that no table could print.

    Raises:
        SpecError: it is no text, or an empty one.
    """
    if not isinstance(name, str) or not name.strip():
        got = repr(name) if isinstance(name, str) else f"{name!r} (a {type(name).__name__})"
        raise SpecError(f"the name of a {kind} is no text", got=got, expected="a str with a letter in it")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` for the known name nearest to ``name``, or an empty string if none is near."""
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else ""


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Return the known name nearest to ``name``, or None if none is near."""
    near = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else ()
    return near[0] if near else None
