"""Tells ``self.training`` from a False that code holds, where a model is traced in evaluation mode but is to train."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from torch import nn


class _EvaluationMode(int):
    """Equal to False, and taken for it by ``if``, ``not``, ``and`` and ``or``.

    Attributes:
        was_converted: Whether code made a bool of it, by ``bool(self.training)``: any False may stand for it then.
    """

    was_converted: bool = False

    def __bool__(self) -> bool:
        frame = sys._getframe(1)
        if "CALL" in dis.opname[frame.f_code.co_code[frame.f_lasti]]:
            self.was_converted = True
        return False

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
