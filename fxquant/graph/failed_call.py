"""Finds the node at which a call of a model fails, and says so in place of what torch says."""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.errors import FxQuantError, InputError
from fxquant.graph.failures import does_not_run
from fxquant.graph.generated_source import GENERATED
from fxquant.graph.inputs import bind
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.query import canonical_type, has_hooks, module_of

_OF_TORCH = (RuntimeError, IndexError, ValueError, TypeError, AssertionError)
"""What operators raise where their arguments do not fit."""


def explained(gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Exception:
    """Return the error of a call with the place where it happened; the error itself where that is not known.

    An error that code of the user's may have raised, in a layer or a hook that is kept as it is, stays what it is. So
    does one of memory.

    Args:
        gm: The model.
        args, kwargs: What it was called with.
        error: What the call raised.
    """
    if not isinstance(error, (*_OF_TORCH, FxQuantError)) or _is_of_memory(error):
        return error
    found = _place(gm, error)
    if found is None:
        return _of_graph(gm, args, kwargs) or error
    node, values, named = found
    if isinstance(error, FxQuantError):
        return error.within(at=node) if node.op == "call_module" and not error.at else error
    return error if _is_of_user(node) else does_not_run(error, node, values, named)


def _is_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)


def _is_of_user(node: Node) -> bool:
    """Tell whether a node runs code that neither torch nor this package wrote."""
    if node.op == "call_module":
        module = module_of(node)
        own = type(module).__module__.startswith("fxquant.")
        return module is None or has_hooks(module) or not (own or canonical_type(module) is not None)
    place = getattr(node.target, "__module__", None) or "torch"
    return node.op == "call_function" and place.partition(".")[0] not in ("torch", "_operator", "fxquant", "math")


def _place(gm: GraphModule, error: Exception) -> tuple[Node, tuple[Any, ...], dict[str, Any]] | None:
    """Return the node whose line of generated code failed, with the values of its arguments."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename.startswith(GENERATED) and frame.f_locals.get("self") is gm:
            index = (gm._lineno_map or {}).get(trace.tb_lineno - gm._prologue_start)
            return None if index is None else _with_values(list(gm.graph.nodes)[index], frame)
        trace = trace.tb_next
    return None


def _with_values(node: Node, frame: FrameType) -> tuple[Node, tuple[Any, ...], dict[str, Any]]:
    values = frame.f_locals  # a value is dropped behind the line that reads it last
    args: Any = map_arg(node.args, lambda argument: values.get(argument.name))
    kwargs: Any = map_arg(node.kwargs, lambda argument: values.get(argument.name))
    return node, args, kwargs


def _of_graph(gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InputError | None:
    """Return what the graph says of a call that failed in a program, which knows no nodes; None where it runs."""
    if gm.training:
        return None  # observers would see the batch twice
    try:
        with torch.no_grad():
            BoundInterpreter(gm, bind(gm, args, kwargs, "the inputs")).run()
    except InputError as error:
        return error
    except Exception:
        return None  # this one explains nothing
    return None
