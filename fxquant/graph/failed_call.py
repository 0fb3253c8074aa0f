"""Finds the node at which a call of a model fails, and says so in place of what torch says."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.errors import FxQuantError, InputError, is_library_file
from fxquant.graph.aliases import changed_argument
from fxquant.graph.failures import does_not_run
from fxquant.graph.generated_source import GENERATED
from fxquant.graph.inputs import bind
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.packing import holds_integers
from fxquant.graph.query import canonical_type, has_hooks, module_of
from fxquant.kernels.interception import is_intercepted

_OF_OPERATORS = (RuntimeError, IndexError, ValueError, TypeError, AssertionError, NotImplementedError)
"""What operators raise where their arguments do not fit. Subclasses say something else: memory, ranks, fake tensors."""
_OF_MEMORY = ("allocate memory", "not enough memory", "ALLOC_FAILED")
"""Of the texts of a RuntimeError where there is no memory."""
_STANDARD_LIBRARY = os.path.join(sysconfig.get_path("stdlib"), "")
_INSTALLED = ("site-packages", "dist-packages")


def explained(gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Exception:
    """Return the error of a call with the place where it happened; the error itself where that is not known.

    What code of the user's raises, in a layer, a hook or a mode, stays what it is. So do errors of memory, and those
    under a transform or a mode of torch, which may catch them.

    Args:
        gm: The model.
        args, kwargs: What it was called with.
        error: What the call raised.
    """
    try:
        return _with_place(gm, args, kwargs, error)
    except Exception:  # an explanation that fails hides nothing
        return error


def _with_place(gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Exception:
    is_own = isinstance(error, FxQuantError)
    if not is_own and (type(error) not in _OF_OPERATORS or any(words in str(error) for words in _OF_MEMORY)):
        return error
    if _is_in_users_code(error) or is_intercepted():
        return error
    found = _place(gm, error)
    if is_own:
        if found is None or found[0].op != "call_module" or error.at:  # type: ignore[attr-defined]
            return error
        return error.within(at=found[0])  # type: ignore[attr-defined]
    return does_not_run(error, *found) if found is not None else _of_graph(gm, args, kwargs) or error


def _frames(error: BaseException) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_in_users_code(error: Exception) -> bool:
    """Tell whether code of the user's ran where an error was raised: below the model's own call."""
    return any(not _is_library(trace.tb_frame.f_code.co_filename) for trace in _frames(error))


def _is_library(path: str) -> bool:
    of_python = path.startswith(_STANDARD_LIBRARY) and not any(name in path for name in _INSTALLED)
    return of_python or is_library_file(path)


def _place(gm: GraphModule, error: Exception) -> tuple[Node, tuple[Any, ...], dict[str, Any]] | None:
    """Return the node whose line of generated code failed, with the values of its arguments."""
    for trace in _frames(error):
        frame = trace.tb_frame
        if frame.f_code.co_filename.startswith(GENERATED) and frame.f_locals.get("self") is gm:
            index = (gm._lineno_map or {}).get(trace.tb_lineno - gm._prologue_start)
            node = None if index is None else list(gm.graph.nodes)[index]
            line = linecache.getline(frame.f_code.co_filename, trace.tb_lineno)
            # A graph that was edited, and not compiled since, has other nodes there.
            is_of_graph = node is not None and re.search(rf"\b{node.name} = (?!None\b)", line)
            return _with_values(node, frame) if node is not None and is_of_graph else None
    return None


def _with_values(node: Node, frame: FrameType) -> tuple[Node, tuple[Any, ...], dict[str, Any]]:
    values = frame.f_locals  # a value is dropped behind the line that reads it last
    args: Any = map_arg(node.args, lambda argument: values.get(argument.name))
    kwargs: Any = map_arg(node.kwargs, lambda argument: values.get(argument.name))
    return node, args, kwargs


def _of_graph(gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InputError | None:
    """Return what the graph says of a call that failed in a program, which knows no nodes.

    None where the graph runs, and where a second run would leave more than its results behind.
    """
    if not holds_integers(gm) or any(_leaves_traces(node) for node in gm.graph.nodes):
        return None
    try:
        with torch.no_grad():
            BoundInterpreter(gm, bind(gm, args, kwargs, "the inputs")).run()
    except InputError as error:
        return error.with_traceback(None)  # which holds all values of the run
    return None


def _leaves_traces(node: Node) -> bool:
    """Tell whether a node may change something: code of the user's, random numbers, a change in place."""
    if node.op in ("placeholder", "output", "get_attr"):
        return False
    module = module_of(node)
    own = module is not None and type(module).__module__.startswith("fxquant.")
    of_user = module is not None and (has_hooks(module) or not (own or canonical_type(module) is not None))
    return of_user or changed_argument(node) is not None or node.is_impure()
