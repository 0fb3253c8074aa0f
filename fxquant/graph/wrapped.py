"""Looks into functions that ``torch.fx.wrap`` would keep whole, and answers ``isinstance`` about proxies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import _symbolic_trace

from fxquant.errors import is_library_file
from fxquant.graph.idle import noted_if_idle, takes_training
from fxquant.graph.proxies import UNKNOWN, TensorProxy, proxies_in
from fxquant.graph.spelling import REGULARIZERS

Globals = dict[str, Any]

FACTORIES = ("zeros", "ones", "empty", "rand", "randn", "eye")
"""What of torch takes sizes as bare arguments, among which torch's parser overlooks proxies."""


class Answers:
    """Names in the modules of the traced code that stand for something else while the trace runs."""

    def __init__(self) -> None:
        self._before: list[tuple[Globals, str, Any]] = []
        self._seen: set[int] = set()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Stand in for wrapped functions that have a Python body; at the end, put everything back."""
        try:
            for (_, name), namespace in _symbolic_trace._wrapped_fns_to_patch.copy().items():
                function = namespace.get(name)
                if isinstance(function, FunctionType) and _may_be_opened(function):
                    self._put(namespace, name, _open(function))
            self._put(vars(F), "isinstance", _isinstance)
            self._put(vars(torch), "is_tensor", lambda value: _isinstance(value, torch.Tensor))
            for name in FACTORIES:
                self._put(vars(torch), name, _record(getattr(torch, name)))
            yield
        finally:
            self._seen.clear()
            while self._before:
                namespace, name, value = self._before.pop()
                if value is UNKNOWN:
                    del namespace[name]
                else:
                    namespace[name] = value

    def about_proxies(self, code: Any) -> None:
        """Let ``isinstance`` in the module of a function (or of a module's forward) see what a proxy stands for.

        Functions there that take ``training`` become nodes where they give their input back.
        """
        namespace = getattr(getattr(code, "forward", code), "__globals__", None)
        if namespace is None or id(namespace) in self._seen:
            return
        self._seen.add(id(namespace))
        for name, value in list(namespace.items()):
            if isinstance(value, FunctionType) and takes_training(value):
                self._put(namespace, name, noted_if_idle(value))
        if "isinstance" not in namespace:
            self._put(namespace, "isinstance", _isinstance)

    def _put(self, namespace: Globals, name: str, value: Any) -> None:
        self._before.append((namespace, name, namespace.get(name, UNKNOWN)))
        namespace[name] = value


def _isinstance(value: Any, kind: Any) -> bool:
    if not isinstance(value, TensorProxy) or value.example is UNKNOWN:
        return isinstance(value, kind)
    return isinstance(value, kind) or isinstance(value.example, kind)


def _may_be_opened(function: FunctionType) -> bool:
    if is_library_file(function.__code__.co_filename):
        return False
    return f"{function.__module__}.{function.__name__}" not in REGULARIZERS


def _record(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        proxy = next(proxies_in((args, kwargs)), None)
        if proxy is None:
            return function(*args, **kwargs)
        return proxy.tracer.create_proxy("call_function", function, args, kwargs)

    return recorded


def _open(function: FunctionType) -> Callable[..., Any]:
    @functools.wraps(function)
    def opened(*args: Any, **kwargs: Any) -> Any:
        proxy = next(proxies_in((args, kwargs)), None)
        return function(*args, **kwargs) if proxy is None else proxy.tracer.open_function(function, args, kwargs)

    setattr(opened, "__fx_already_patched", True)
    return opened
