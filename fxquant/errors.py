"""Every exception and warning of fxquant, and the one layout of their messages: what / at / got / expected / hint."""

from __future__ import annotations

import inspect
import os
import re
import reprlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Node

_LIBRARY_ROOTS = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, __file__))

LONGEST_LISTING = 20
"""Lines that a message lists before it says how many more there are."""


class FxQuantError(Exception):
    """Base class. Catch this to catch anything fxquant raises on purpose."""

    def __init__(
        self,
        what: str,
        *,
        at: Node | str | None = None,
        got: object = None,
        expected: object = None,
        hint: str = "",
    ) -> None:
        super().__init__(layout(what, at=at, got=got, expected=expected, hint=hint))
        where = describe(at) if isinstance(at, Node) else at  # text alone: an error that is kept keeps no graph alive
        facts: dict[str, Any] = {"at": where, "got": _text(got), "expected": _text(expected), "hint": hint}
        self._facts = what, facts

    @property
    def summary(self) -> str:
        """What and where, in one line: for tables."""
        what, facts = self._facts
        return ", ".join(filter(None, (str(facts["got"] or what), facts["at"])))

    @property
    def at(self) -> str | None:
        """Where: the node or the place that the message names."""
        where: str | None = self._facts[1]["at"]
        return where

    def within(self, where: str = "", *, at: Node | str | None = None) -> FxQuantError:
        """Return the same error, which says more of where it happened.

        Args:
            where: What the message begins with: ``"batch 2"``.
            at: The place, if it names none yet.
        """
        what, facts = self._facts
        return type(self)(f"{where}: {what}" if where else what, **{**facts, "at": facts["at"] or at})


class SpecError(FxQuantError, ValueError):
    """A QScheme, QParams or QConfig cannot exist as written."""


class UnknownNameError(FxQuantError, KeyError):
    """No pattern, observer, backend or pass has that name."""

    __str__ = Exception.__str__  # KeyError shows the repr of its message, on one line


class DuplicateNameError(FxQuantError, ValueError):
    """A pattern, observer, backend or pass of that name is registered already."""


class InputError(FxQuantError, TypeError):
    """An example input, a batch or another argument is of the wrong kind, or does not run through the model."""


class TracingError(FxQuantError, RuntimeError):
    """torch.fx cannot trace the model (the message names the submodule and the user's line), or torch.export."""

    submodule: str | None = None
    """Path of the submodule that cannot be traced, empty for the model itself; None where another thing is wrong."""


class CalibrationError(FxQuantError, RuntimeError):
    """The observed ranges are missing or unusable."""


class PlanError(FxQuantError, RuntimeError):
    """Nothing could be planned, or, in strict mode, something that should be quantized would stay float."""


class PassError(FxQuantError, RuntimeError):
    """A pass failed, left the graph invalid, or changed values that it promised to keep."""


class LoweringError(FxQuantError, RuntimeError):
    """A unit cannot become operators of the chosen backend."""


class KernelError(FxQuantError, RuntimeError):
    """A native kernel is missing, or an instruction set was asked for that this machine does not have."""


class StateError(FxQuantError, RuntimeError):
    """A state dict does not fit the model that it is loaded into, or holds what no quantized model can have."""


class ArtifactError(FxQuantError, ValueError):
    """A model cannot be written to a file, or a file is none that a model can be made of."""


class MethodError(FxQuantError, AttributeError):
    """A method of the user's class needs a layer that a traced model does not have as the float model had it; or an
    attribute of torch.ao's layers is read, which an int8 unit does not have."""


class ExportError(FxQuantError, RuntimeError):
    """A model cannot be written for another runtime, or gives something else there."""


class NotOffered(FxQuantError, NotImplementedError):  # noqa: N818 - it says what is the matter
    """``fxquant.compat`` has no such thing of torch.ao; the hint names what does the same."""


class SampleError(FxQuantError, RuntimeError):
    """Sample weights or photographs, or an extra that reads them, cannot be had. Quantizing itself needs none."""


class RankError(FxQuantError, RuntimeError):
    """Another rank of a process group does not go on, or has something else; the message names the rank and why."""


class FxQuantWarning(UserWarning):
    """Something the user should know, after which the work can go on. Same layout as the errors."""


def check_type(name: str, value: object, types: type | tuple[type, ...], expected: str) -> None:
    """Refuse an argument of another type.

    Raises:
        InputError: the message shows the value and its type.
    """
    if not isinstance(value, types):
        got = f"{reprlib.repr(value)} (a {type(value).__name__})"
        raise InputError(f"{name} is of another type", got=got, expected=expected)


@contextmanager
def error_context(where: str = "", *, at: Node | str | None = None) -> Iterator[None]:
    """Errors of this package that leave the body say more of where they happened; see ``FxQuantError.within``."""
    try:
        yield
    except FxQuantError as error:
        raise error.within(where, at=at).with_traceback(error.__traceback__) from error.__cause__


@contextmanager
def writing(what: str, path: str | os.PathLike[str], *, hint: str = "") -> Iterator[None]:
    """Say in this layout why a file or a folder cannot be made or written to.

    Args:
        what: What was to be written, as in "the report".
        path: Where to; an error that names another place counts.
        hint: What to do.

    Raises:
        InputError: the body raised an ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{what} cannot be written",
            at=str(error.filename or path),
            got=error.strerror or str(error) or type(error).__name__,
            expected="a place that can be made and written to",
            hint=hint,
        ) from error


def warn(
    what: str, *, at: Node | str | None = None, got: object = None, expected: object = None, hint: str = ""
) -> None:
    """Give an ``FxQuantWarning``, at the line of the user's code that called the library."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and is_library_file(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    message = layout(what, at=at, got=got, expected=expected, hint=hint)
    warnings.warn(FxQuantWarning(message), stacklevel=max(level, 1))


def layout(
    what: str, *, at: Node | str | None = None, got: object = None, expected: object = None, hint: str = ""
) -> str:
    """Lay a message out: one line that says what, then one line for each further fact that is known."""
    facts = (
        ("at", describe(at) if isinstance(at, Node) else at),
        ("got", got),
        ("expected", expected),
        ("hint", hint or None),
    )
    return "\n".join([what, *(f"  {name + ':':<9} {fact}" for name, fact in facts if fact is not None)])


def _text(fact: object) -> str | None:
    return None if fact is None else str(fact)


def listing(lines: Sequence[str]) -> str:
    """Lines of a message, one below the other, the first twenty."""
    more = [f"and {len(lines) - LONGEST_LISTING} more"] if len(lines) > LONGEST_LISTING else []
    return "\n            ".join([*lines[:LONGEST_LISTING], *more])


def describe(node: Node) -> str:
    """Return the node as torch.fx prints it, then the line of the user's own code that made it, where that is known."""
    line = user_line(node)
    return (node.format_node() or node.name) + (f", from {line}" if line else "")


def user_line(node: Node) -> str:
    """``path:line`` of the innermost frame outside torch and fxquant that created ``node``, or an empty string."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "")
    own = [f"{path}:{line}" for path, line in frames if not is_library_file(path)]
    return own[-1] if own else ""


def is_library_file(path: str) -> bool:
    """Tell whether a source file is part of torch or fxquant, or is generated: its lines are none of the user's."""
    return path.startswith(_LIBRARY_ROOTS) or path.startswith("<")
