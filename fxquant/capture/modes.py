"""Tells ``self.training`` from a False that code holds, where a model is traced in evaluation mode but is to train.

Modules and functions that do nothing in evaluation mode become nodes, which training needs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from types import FunctionType, NoneType
from typing import Any, Final

from torch import Tensor, nn
from torch.fx import Graph, Node

from fxquant.capture.copies import trained_copy
from fxquant.capture.proxies import TensorProxy, proxies_in
from fxquant.graph.query import ONLY_IN_TRAINING


class _EvaluationMode(int):
    """Equal to False, and taken for it by ``if``, ``not``, ``and`` and ``or``.

    Attributes:
        was_converted: Whether code of the module that runs asked for its truth or compared it: any True or False there
            may follow from it then.
        flags: What plain values modules had as attributes before the trace.
        follow: Modules of which ``train`` of the user's own sets some: they follow the mode.
    """

    was_converted: bool = False
    flags: Mapping[nn.Module, Any] = {}
    follow: Collection[nn.Module] = ()

    @contextmanager
    def inside(self, module: nn.Module, arguments: Iterable[Any]) -> Iterator[None]:
        """Within the block, another module runs. What was asked outside may tell it, by all but tensors."""
        outside = self.was_converted
        told = any(not isinstance(value, (TensorProxy, Tensor, NoneType)) for value in arguments)
        told = told or _reads_flag(module) or _flags(module) != self.flags.get(module)
        self.was_converted = (outside and told) or module in self.follow
        try:
            yield
        finally:
            self.was_converted = outside or self.was_converted

    def __bool__(self) -> bool:
        self.was_converted = True
        return False

    def __eq__(self, other: object) -> bool:
        self.was_converted = True
        return int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __repr__(self) -> str:
        return "False"


EVALUATION: Final = _EvaluationMode(0)
"""What ``self.training`` is meanwhile: ``F.dropout(x, p, self.training)`` drops values once the graph trains, and
``F.dropout(x, p, False)`` never does."""

_PLAIN = (bool, int, float, str, NoneType)


@contextmanager
def marked_modes(model: nn.Module) -> Iterator[None]:
    """Within the block, ``training`` of every module in evaluation mode is ``EVALUATION``."""
    modules = [module for module in model.modules() if module.training is False]
    EVALUATION.was_converted = False
    EVALUATION.flags = {module: _flags(module) for module in model.modules()}
    EVALUATION.follow = _set_by_train(model)
    _set(modules, EVALUATION)
    try:
        yield
    finally:
        _set(modules, False)
        EVALUATION.flags, EVALUATION.follow = {}, ()


def _flags(module: nn.Module) -> dict[str, Any]:
    """Return the plain values among the attributes of a module."""
    return {name: value for name, value in vars(module).items() if isinstance(value, _PLAIN) and name != "training"}


def _reads_flag(module: nn.Module) -> bool:
    """Tell whether the forward of a module reads an attribute that is True or False, which others may have set."""
    code = getattr(type(module).forward, "__code__", None)
    named = () if code is None else code.co_names
    return any(isinstance(value, bool) and name in named for name, value in _flags(module).items())


def _set_by_train(model: nn.Module) -> list[nn.Module]:
    """Find the modules that get other plain values as attributes by ``train``, where that is the user's own."""
    trained = trained_copy(model)
    pairs = zip(model.modules(), () if trained is None else trained.modules(), strict=False)
    return [module for module, other in pairs if _flags(module) != _flags(other)]


@contextmanager
def plain_modes(module: nn.Module) -> Iterator[None]:
    """Within the block it is False, in a module that runs: torch's operators take nothing else."""
    marked = [inner for inner in module.modules() if vars(inner).get("training") is EVALUATION]
    _set(marked, False)
    try:
        yield
    finally:
        _set(marked, EVALUATION)


def _set(modules: list[nn.Module], training: Any) -> None:
    for module in modules:
        vars(module)["training"] = training


def without_marks(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """Arguments as torch takes them, and whether any may stand for the mode of a module."""
    follows = EVALUATION.was_converted or any(value is EVALUATION for value in (*args, *kwargs.values()))
    return tuple(map(as_bool, args)), {name: as_bool(value) for name, value in kwargs.items()}, follows


def as_bool(value: Any) -> Any:
    """False in place of ``EVALUATION``; everything else as it is."""
    return False if value is EVALUATION else value


def asks_for_training(module: nn.Module) -> bool:
    """Tell whether the forward of a user's module reads ``self.training``, by the names in its code."""
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "training" in code.co_names


def takes_training(function: FunctionType) -> bool:
    """Tell whether a function takes an argument ``training`` and is not patched already."""
    code = function.__code__
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return "training" in taken and not hasattr(function, "__fx_already_patched")


def last_of(graph: Graph) -> Node:
    """Return the node that was made last; the root of a graph that has none."""
    return next(iter(reversed(graph.nodes)), graph._root)


def gave_back(result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], last: Node) -> bool:
    """Tell whether a call made no node after ``last`` and gave its first argument, a tensor, back."""
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
    """Return the function, but calls with a traced tensor that do nothing, since ``training`` is False, become nodes.

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
        always = proxy.tracer.marks_training_flag and training is not EVALUATION and not EVALUATION.was_converted
        if as_bool(training) is False and not always and gave_back(result, args, kwargs, last):
            return note_idle(proxy.tracer, "call_function", function, args, kwargs)
        return result

    return noted
