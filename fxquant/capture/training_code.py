"""Finds code that runs only while training, which a graph of evaluation mode leaves out: ``if self.training: ...``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fxquant.capture.copies import copy_of
from fxquant.capture.trace_guards import user_line
from fxquant.errors import listing, warn
from fxquant.graph.query import module_of


def warn_of_code_for_training(
    model: nn.Module, gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Warn if a model calls other operators while it trains than its graph does.

    The model is run twice, in evaluation mode but for what its own code is told of ``self.training``. What the graph
    keeps whole, and functions that it follows into training, are told nothing else.

    Args:
        model: In evaluation mode. It is not changed.
        gm: The graph that was made of it.
        args: Positional inputs.
        kwargs: Keyword inputs.
    """
    if not any(_reads_training(module) for module in model.modules()):
        return
    followed = frozenset(_followed(gm))
    evaluation, training = (_Run(followed, answer) for answer in (False, True))
    if not evaluation.call(model, args, kwargs) or not evaluation.lines:
        return
    if training.call(model, args, kwargs) and training.calls == evaluation.calls:
        return
    warn(
        "code that runs only while training is left out: the graph is that of evaluation mode",
        got=listing(list(evaluation.lines)),
        hint="nn.Dropout, F.dropout and batch norms train; a module of your own does if leaf_modules names it",
    )


def _reads_training(module: nn.Module) -> bool:
    """Tell whether code of a user's class reads an attribute ``training``."""
    return any(
        "training" in function.__code__.co_names
        for kind in type(module).__mro__
        if not kind.__module__.startswith(("torch.", "fxquant."))
        for function in vars(kind).values()
        if isinstance(function, FunctionType)
    )


def _followed(gm: GraphModule) -> Iterable[CodeType]:
    """Return the code of modules and functions that the graph calls as they are: they are told when it trains."""
    for node in gm.graph.nodes:
        module = module_of(node)
        if module is not None and not type(module).__module__.startswith("torch."):
            yield type(module).forward.__code__
        elif isinstance(node.target, FunctionType):
            yield node.target.__code__


class _Mode(int):
    """Stands for ``self.training`` of the user's modules: it answers whoever asks for its truth, and notes the line."""

    run: _Run

    def __bool__(self) -> bool:
        return self.run.answer_at(sys._getframe(1))

    def __eq__(self, other: object) -> bool:
        return self.run.answer_at(sys._getframe(1)) == other

    def __ne__(self, other: object) -> bool:
        return self.run.answer_at(sys._getframe(1)) != other

    __hash__ = int.__hash__


class _Run(TorchFunctionMode):
    """One call of a model: the operators that it calls, and the lines that ask for the mode."""

    def __init__(self, followed: frozenset[CodeType], answer: bool) -> None:
        super().__init__()
        self._followed, self._answer = followed, answer
        self.calls: list[tuple[Any, ...]] = []
        self.lines: dict[str, None] = {}
        """The lines, in the order in which they asked."""

    def call(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Run a copy of a model; tell whether it ran."""
        trial = copy_of(model)
        mode = _Mode()
        mode.run = self
        for module in trial.modules():
            if not type(module).__module__.startswith("torch."):
                vars(module)["training"] = mode
        own_args, own_kwargs = pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), (args, dict(kwargs)))
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=()), self:
                trial(*own_args, **own_kwargs)
        except Exception:  # the user's code may take no integer for a bool; then nothing is said
            return False
        return True

    def answer_at(self, frame: Any) -> bool:
        """Return what is answered in the code of a frame."""
        outer, below = frame, _Run.call.__code__
        while outer is not None and outer.f_code is not below:
            if outer.f_code in self._followed:
                return False
            outer = outer.f_back
        self.lines.setdefault(user_line(frame, below))
        return self._answer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        plain: Any = pytree.tree_map_only(_Mode, lambda _: False, (tuple(args), dict(kwargs or {})))
        numbers = [value for value in pytree.tree_leaves(plain) if isinstance(value, (bool, int, float, str))]
        self.calls.append((getattr(func, "__name__", repr(func)), *numbers))
        return func(*plain[0], **plain[1])
