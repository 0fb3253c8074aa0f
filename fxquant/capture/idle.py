"""The user's modules and functions that do nothing in evaluation mode: they become nodes, which training needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from inspect import signature
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, Node

from fxquant.capture.proxies import TensorProxy, proxies_in
from fxquant.graph.modes import EVALUATION, as_bool
from fxquant.graph.query import ONLY_IN_TRAINING


def asks_for_training(module: nn.Module) -> bool:
    """Whether the forward of a module of the user's reads ``self.training``."""
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "training" in code.co_names


def takes_training(function: FunctionType) -> bool:
    """Whether a function has an argument ``training``."""
    code = function.__code__
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return "training" in taken and not hasattr(function, "__fx_already_patched")


def last_of(graph: Graph) -> Node:
    """The node that was made last; the root of a graph that has none."""
    return next(iter(reversed(graph.nodes)), graph._root)


def gave_back(result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], last: Node) -> bool:
    """Whether a call did nothing but to give its first argument, a tensor, back; ``last`` is the node before it."""
    if not isinstance(result, TensorProxy) or not isinstance(result.example, Tensor):
        return False
    same = bool(args) and result is args[0] and not any(proxies_in((args[1:], kwargs)))
    return same and last_of(result.node.graph) is last


def note_idle(tracer: Any, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TensorProxy:
    """Make a node of a call that does nothing in evaluation mode; the answer is what the call gives."""
    proxy: TensorProxy = tracer.create_proxy(kind, target, args, kwargs)
    proxy.node.meta[ONLY_IN_TRAINING] = True
    return proxy


def noted_if_idle(function: FunctionType) -> Callable[..., Any]:
    """The function, but calls with a traced tensor that do nothing, since ``training`` is False, become nodes.

    Where calls that say so themselves are told apart, these do not: they never do anything.
    """

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        proxy = next(proxies_in((args, kwargs)), None)
        if proxy is None:
            return function(*args, **kwargs)
        last = last_of(proxy.node.graph)
        result = function(*args, **kwargs)
        bound = signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        training = bound.arguments["training"]
        always = proxy.tracer.marks_modes and training is not EVALUATION and not EVALUATION.was_converted
        if as_bool(training) is False and not always and gave_back(result, args, kwargs, last):
            return note_idle(proxy.tracer, "call_function", function, args, kwargs)
        return result

    return noted
