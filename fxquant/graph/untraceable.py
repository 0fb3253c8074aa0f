"""Where tracing fails: which submodule and which line are at fault, said in the user's terms."""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import nn
from torch.fx import Graph

from fxquant.errors import FxQuantError, TracingError, is_library_file, warn

EXPECTED = "a forward that does not depend on values"

MEANINGS = (
    ("inputs to control flow", "a branch (if, while, and, or, assert) on the value of a tensor"),
    ("cannot be iterated", "a loop over a tensor or over something made of one, whose length is not known"),
    ("'len' is not supported", "len() of a tensor, which is not known while tracing"),
    ("cannot be interpreted as an integer", "range() or another use of a number that is known only at run time"),
    ("must be a string or a real number", "int() or float() of a tensor, whose value is known only at run time"),
    ("expected np.ndarray", "a conversion to numpy and back: no graph sees what happens between"),
    ("__bool__ should return", "a branch on the value of a tensor"),
)
"""What torch.fx says -> what it means to somebody who never heard of proxies."""


class StateAssignmentError(Exception):
    """A forward assigns to an attribute of its module that is no buffer: such state is no part of a graph."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(f"an assignment to self.{name}, which is no buffer: such state is no part of a graph")
        self.line = _line_that_assigns(type(module), name)


def _line_that_assigns(kind: type[nn.Module], name: str) -> str:
    try:
        source, first = inspect.getsourcelines(kind.forward)
        own = kind.forward.__code__.co_varnames[0]
    except (OSError, TypeError, AttributeError):  # no source: made in an interpreter, or built in
        return ""
    pattern = re.compile(rf"\b{re.escape(own)}\.{re.escape(name)}\b[^=]*=(?!=)")
    found = [(first + offset, text.strip()) for offset, text in enumerate(source) if pattern.search(text)]
    return f"{inspect.getsourcefile(kind)}:{found[0][0]}: {found[0][1]}" if found else ""


class FailingTracer(Protocol):
    """A tracer that remembers the last error that left a submodule: (error, path of that submodule, its type)."""

    failed: tuple[BaseException, str, type[nn.Module]] | None

    def trace(self, root: nn.Module) -> Graph: ...


@dataclass(frozen=True, slots=True)
class Untraceable:
    """One place that torch.fx cannot trace."""

    path: str
    """The innermost submodule; empty if it is the model's own forward."""
    kind: str
    """Name of its class."""
    line: str
    """``file:line: source`` of the user's code; empty if no line of his is involved."""
    meaning: str

    @property
    def reason(self) -> str:
        """In a few words, for tables."""
        return f"torch.fx cannot trace it: {self.meaning}" + (f", {self.line}" if self.line else "")

    def error(self) -> TracingError:
        """The error to raise where nothing can be kept whole."""
        return TracingError(self.what(), at=self.line or None, got=self.meaning, expected=EXPECTED, hint=self._hint())

    def warn(self) -> None:
        """Warn, in the words of the error, that the submodule was kept whole."""
        hint = f"{self._hint()}, which was done; rewriting that line lets its inside be quantized too"
        warn(self.what(), at=self.line or None, got=self.meaning, expected=EXPECTED, hint=hint)

    def what(self) -> str:
        if self.path:
            return f"torch.fx cannot trace the submodule {self.path!r} (a {self.kind})"
        return f"torch.fx cannot trace the forward of the model itself (a {self.kind})"

    def _hint(self) -> str:
        if self.path:
            return f'leaf_modules=("{self.path}",) keeps it whole and in float'
        return "move that line into a submodule of its own, which leaf_modules can then keep whole and in float"


def trace_what_can_be(
    make_tracer: Callable[[tuple[str, ...]], FailingTracer], model: nn.Module, *, keep_untraceable: bool
) -> tuple[Graph, tuple[Untraceable, ...]]:
    """Trace; where that fails, keep the smallest submodule at fault whole, and trace again.

    Args:
        make_tracer: Makes a tracer that keeps the submodules of these paths whole.
        model: What to trace.
        keep_untraceable: False: the first failure is an error.

    Returns:
        The graph, and the submodules that were kept whole.

    Raises:
        TracingError: the model's own forward cannot be traced, or, unless ``keep_untraceable``, a submodule's.
    """
    kept: list[Untraceable] = []
    while True:
        tracer = make_tracer(tuple(one.path for one in kept))
        try:
            return tracer.trace(model), tuple(kept)
        except FxQuantError:  # the example does not run
            raise
        except Exception as error:
            found = _locate(tracer, model, error)
            if not keep_untraceable or not found.path or found.path in [one.path for one in kept]:
                raise found.error() from error
            kept.append(found)


def _locate(tracer: FailingTracer, model: nn.Module, error: Exception) -> Untraceable:
    line, meaning = fault_of(error)
    path, kind = "", type(model)
    if tracer.failed is not None and tracer.failed[0] is error:
        _, path, kind = tracer.failed
    return Untraceable(path, kind.__name__, line, meaning)


def fault_of(error: Exception) -> tuple[str, str]:
    """The user's line at which tracing failed (``file:line: source``), and what that means."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library_file(frame.filename)]
    line = error.line if isinstance(error, StateAssignmentError) else ""
    if own and not isinstance(error, StateAssignmentError):
        source = (own[-1].line or linecache.getline(own[-1].filename, own[-1].lineno or 0)).strip()
        line = f"{own[-1].filename}:{own[-1].lineno}: {source}"
    return line, _meaning(error)


def _meaning(error: Exception) -> str:
    text = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if isinstance(error, StateAssignmentError):
        return text
    return next((meaning for symptom, meaning in MEANINGS if symptom in text), f"{type(error).__name__}: {text}")
