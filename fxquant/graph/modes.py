"""Tells ``self.training`` from a False that code holds, where a model is traced in evaluation mode but is to train."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any, Final

from torch import nn


class _EvaluationMode(int):
    """Equal to False, and taken for it by ``if``, ``not``, ``and`` and ``or``.

    Attributes:
        was_converted: Whether code asked for its truth or compared it: any True or False may follow from it then.
    """

    was_converted: bool = False

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


@contextmanager
def marked_modes(root: nn.Module) -> Iterator[None]:
    """Within the block, ``training`` of every module in evaluation mode is ``EVALUATION``."""
    modules = [module for module in root.modules() if module.training is False]
    EVALUATION.was_converted = False
    _set(modules, EVALUATION)
    try:
        yield
    finally:
        _set(modules, False)


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


def asks_by_identity(root: nn.Module) -> bool:
    """Whether a class of the model may ask ``self.training is False``, which no mark can answer as False does."""
    classes = {base for module in root.modules() for base in type(module).__mro__}
    functions = (item for cls in classes if not cls.__module__.startswith("torch.") for item in vars(cls).values())
    return any(_compares_with_bool(item.__code__) for item in functions if isinstance(item, FunctionType))


def _compares_with_bool(code: CodeType) -> bool:
    if "training" not in code.co_names:
        return False
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    return any(second.opname == "IS_OP" and isinstance(first.argval, bool) for first, second in pairwise(instructions))
