"""Traces what can be traced, and names the submodule and the line at fault where tracing fails."""

from __future__ import annotations

import copy
import linecache
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from fxquant.capture.attributes import Change, StateAssignmentError
from fxquant.errors import FxQuantError, TracingError, is_library_file, warn
from fxquant.graph.query import attribute_at

UNTRACEABLE = "torch.fx cannot trace it: "
"""What the reason of a module that is kept whole begins with."""

EXPECTED = "a forward that does not depend on values"

MEANINGS = (
    ("inputs to control flow", "a branch (if, while, and, or, assert) on the value of a tensor"),
    ("cannot be iterated", "a loop over a tensor or over something made of one, whose length is not known"),
    ("'len' is not supported", "len() of a tensor, which is not known while tracing"),
    ("cannot be interpreted as an integer", "range() or another use of a number that is known only at run time"),
    ("must be a string or a real number", "int() or float() of a tensor, whose value is known only at run time"),
    ("expected np.ndarray", "a conversion to numpy and back: no graph sees what happens between"),
    ("__bool__ should return", "a branch on the value of a tensor"),
    (
        "argument of type",
        "an object of a class of its own, given back or handed on: a graph holds tuples, lists, dicts, named tuples "
        "and dataclasses",
    ),
)
"""What torch.fx says -> what it means to somebody who never heard of proxies."""


class FailingTracer(Protocol):
    """A tracer that remembers what went wrong, and what the forward left behind."""

    failed: tuple[BaseException, str, type[nn.Module]] | None
    """The last error that left a submodule: (error, path of that submodule, its type)."""
    left: list[Change]
    """Attributes that the forward changed."""

    @property
    def wrote_constants(self) -> bool: ...

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
    foreign: str = ""
    """Name of the function of another package that the line called, and that failed."""

    @property
    def reason(self) -> str:
        """Say why in a few words, for tables."""
        return reason_for(self.line, self.meaning)

    def error(self) -> TracingError:
        """Return the error to raise where nothing can be kept whole."""
        hint = self._hint()
        error = TracingError(self.what(), at=self.line or None, got=self.meaning, expected=EXPECTED, hint=hint)
        error.submodule = self.path
        return error

    def warn(self) -> None:
        """Warn, in the words of the error, that the submodule was kept whole."""
        hint = f"{self._hint()}, which was done; rewriting that line lets its inside be quantized too"
        warn(self.what(), at=self.line or None, got=self.meaning, expected=EXPECTED, hint=hint)

    def what(self) -> str:
        if self.path:
            return f"torch.fx cannot trace the submodule {self.path!r} (a {self.kind})"
        return f"torch.fx cannot trace the forward of the model itself (a {self.kind})"

    def _hint(self) -> str:
        if self.foreign:
            module, _, name = self.foreign.rpartition(".")
            return (
                f'"from {module} import {name}", and torch.fx.wrap("{name}") behind it, where that line stands, '
                f"keep the call of {name} whole and in float"
            )
        if self.path:
            return f'leaf_modules=("{self.path}",) keeps it whole and in float'
        return "move that line into a submodule of its own, which leaf_modules can then keep whole and in float"


def trace_what_can_be(
    make_tracer: Callable[[tuple[str, ...], bool], FailingTracer], model: nn.Module, *, keep_untraceable: bool
) -> tuple[Graph, tuple[Untraceable, ...]]:
    """Trace; where that fails, keep the smallest submodule at fault whole, and trace again.

    What the forward leaves in attributes may be of the kind that a second call finds and uses (a table that is made
    once), so that this is traced to the same graph. Where it is not, tensor attributes that the forward changes become
    buffers that are no part of the state: graphs keep those from call to call. Anything else makes it untraceable.

    Args:
        make_tracer: Makes a tracer that keeps the submodules of these paths whole, and that traces, or takes as
            constants, tensors that a forward makes of numbers alone.
        model: What to trace.
        keep_untraceable: False: the first failure is an error.

    Returns:
        The graph, and the submodules that were kept whole.

    Raises:
        TracingError: the model's own forward cannot be traced, or, unless ``keep_untraceable``, a submodule's.
    """
    untraceable: list[Untraceable] = []
    factories = False
    while True:
        # Trace with what is known by now.
        options = tuple(one.path for one in untraceable), factories
        tracer = make_tracer(*options)
        try:
            graph = tracer.trace(model)
            if not tracer.left or _is_traced_again(make_tracer(*options), tracer, model, graph):
                return graph, tuple(untraceable)
            if _become_buffers(tracer.left):
                continue
            # An attribute was assigned a proxy, and cannot become a buffer.
            change = tracer.left[0]
            failure = StateAssignmentError(change.module, change.name)
            tracer.failed = (failure, change.path, type(change.module)) if change.path else None
            raise failure
        except FxQuantError:  # the example does not run
            raise
        except Exception as error:
            # Learn from the failure, and trace again.
            if isinstance(error, StateAssignmentError) and _become_buffer(error.module, error.name):
                continue
            if tracer.wrote_constants and not factories:
                factories = True
                continue
            found = _locate(tracer, model, error)
            if not keep_untraceable or not found.path or found.path in [one.path for one in untraceable]:
                raise found.error() from error
            untraceable.append(found)


def _become_buffers(changes: Iterable[Change]) -> bool:
    """Make buffers of all tensor attributes that were changed; False if there is none."""
    return any([_become_buffer(change.module, change.name) for change in changes if change.was_tensor])  # noqa: C419


def _become_buffer(module: nn.Module, name: str) -> bool:
    """Make a tensor attribute a buffer; False if it is none."""
    value = vars(module).get(name)
    if not isinstance(value, Tensor):
        return False
    del vars(module)[name]
    module.register_buffer(name, value, persistent=False)
    return True


def _is_traced_again(second: FailingTracer, first: FailingTracer, model: nn.Module, graph: Graph) -> bool:
    """Tell whether the model, as its first call left it, is traced to the same graph.

    Or, where all that the first call left was made of the sizes of its inputs: whether the second leaves that as it is.
    Then it is a table that is kept as long as sizes stay the same, and that the graph makes in each call.
    """
    later = copy.deepcopy(model)
    for change in first.left:
        module = later.get_submodule(change.path)
        module._buffers.pop(change.name, None)  # read as what it is, not traced: so was the one that was just made
        vars(module)[change.name] = change.after
    try:
        again = second.trace(later)
    except Exception:  # the second call goes another way
        return False
    kept_by_sizes = all(change.of_sizes for change in first.left) and not second.left
    return kept_by_sizes or is_same_graph(graph, model, again, later)


def _locate(tracer: FailingTracer, model: nn.Module, error: Exception) -> Untraceable:
    line, meaning = fault_of(error)
    path, kind = "", type(model)
    if tracer.failed is not None and tracer.failed[0] is error:
        _, path, kind = tracer.failed
    return Untraceable(path, kind.__name__, line, meaning, _foreign_function(error))


def reason_for(line: str, meaning: str) -> str:
    """Say in a few words why something stays whole, for tables; the line may be empty."""
    return f"{UNTRACEABLE}{meaning}" + (f", {line}" if line else "")


def fault_of(error: Exception) -> tuple[str, str]:
    """Return the user's line at which tracing failed (``file:line: source``), and what that means."""
    own = _own_frames(error)
    line = error.line if isinstance(error, StateAssignmentError) else ""
    if own and not isinstance(error, StateAssignmentError):
        source = (own[-1].line or linecache.getline(own[-1].filename, own[-1].lineno or 0)).strip()
        line = f"{own[-1].filename}:{own[-1].lineno}: {source}"
    return line, _meaning(error)


def _own_frames(error: Exception) -> list[traceback.FrameSummary]:
    """Return the user's frames; those of a package that he installed only where he has none: then it is its model."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library_file(frame.filename)]
    return [frame for frame in frames if not _is_installed(frame.filename)] or frames


def _foreign_function(error: Exception) -> str:
    """Name the function, with its package, that a line of the user's called and in which tracing failed."""
    frame, own = error.__traceback__, False
    while frame is not None:
        code, names = frame.tb_frame.f_code, frame.tb_frame.f_globals
        if not is_library_file(code.co_filename):
            if own and _is_installed(code.co_filename):
                package = str(names.get("__name__", "")).partition(".")[0]
                return f"{package}.{code.co_name}" if callable(names.get(code.co_name)) else ""
            own = not _is_installed(code.co_filename)
        frame = frame.tb_next
    return ""


def _is_installed(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path


def _meaning(error: Exception) -> str:
    text = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if isinstance(error, StateAssignmentError):
        return text
    return next((meaning for symptom, meaning in MEANINGS if symptom in text), f"{type(error).__name__}: {text}")


def is_same_graph(one: Graph, root: nn.Module, other: Graph, other_root: nn.Module) -> bool:
    """Compare two graphs node by node: operators, arguments, and the attributes or values of constants that they read.

    Args:
        one: A graph.
        root: The module whose attributes it reads.
        other: Another graph.
        other_root: The same for that.
    """
    calls, others = ([node for node in graph.nodes if node.op != "get_attr"] for graph in (one, other))
    counterpart = dict(zip(calls, others, strict=False))

    def same(a: Any, b: Any) -> bool:
        if type(a) is not type(b):
            return False
        if isinstance(a, slice):  # which pytree takes for one value, whatever its ends are
            return all(map(same, (a.start, a.stop, a.step), (b.start, b.stop, b.step)))
        if not isinstance(a, Node):
            return bool(a == b) or (a != a and b != b)
        if a.op == b.op == "get_attr":
            return _is_same_value(attribute_at(root, str(a.target)), attribute_at(other_root, str(b.target)))
        return counterpart.get(a) is b

    for a, b in zip(calls, others, strict=False):
        given, structure = pytree.tree_flatten((a.args, a.kwargs))
        taken, other_structure = pytree.tree_flatten((b.args, b.kwargs))
        if a.op != b.op or a.target != b.target or structure != other_structure:
            return False
        if not all(map(same, given, taken)):
            return False
    return len(calls) == len(others)


def _is_same_value(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())
