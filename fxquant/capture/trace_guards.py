"""What stands in a graph for an answer that was given while tracing: other inputs must give the same one."""

from __future__ import annotations

from typing import Any

from fxquant.errors import InputError
from fxquant.graph.inputs import describe_value


def require_value(value: Any, expected: Any, name: str) -> None:
    """Stand in a graph for an argument that tracing fixed to one value.

    Raises:
        InputError: the argument has another value.
    """
    if type(value) is not type(expected) or value != expected:
        raise InputError(
            f"the argument {name!r} was fixed when the model was prepared",
            got=describe_value(value),
            expected=describe_value(expected),
            hint=f"give {name!r} that value in the example inputs, and prepare again",
        )


def require_given(value: Any, example: str, name: str) -> None:
    """Stand in a graph for an argument that may be left out, and was not: code that branches on it went that way.

    Args:
        value: The argument.
        example: What it was when the model was prepared, in words.
        name: Its name.

    Raises:
        InputError: it was left out.
    """
    if value is None:
        raise InputError(
            f"the argument {name!r} was given when the model was prepared, and is left out now",
            got="None",
            expected=example,
            hint=f"give {name!r}, or leave it out of the example inputs too, and prepare again",
        )


def require_answer(value: Any, answer: Any, line: str) -> None:
    """Stand in a graph for a branch, a loop or a number that the user's code took from the shapes of the example.

    Args:
        value: What it depends on.
        answer: What it was on the example: a bool for a branch, else a number.
        line: ``file:line: source`` of the user's code, or empty.

    Raises:
        InputError: these inputs give another answer, so the code would do something else than what was traced.
    """
    got = bool(value) if isinstance(answer, bool) else value
    if got != answer:
        raise InputError(
            "the model was prepared for inputs of other sizes: on these it would compute something else",
            at=line or None,
            got=repr(got),
            expected=repr(answer),
            hint="prepare it again with example inputs of this size",
        )


def require_rank(rank: int, expected: int, unit: str, line: str) -> None:
    """Stand in a graph before a unit that is right for one number of dimensions only.

    Args:
        rank: Number of dimensions of what it reads.
        expected: Of the example.
        unit: The unit, in words.
        line: ``file:line`` of the user's code, or empty.

    Raises:
        InputError: the two differ.
    """
    if rank != expected:
        raise InputError(
            f"a norm was planned for inputs of {expected} dimensions: of these, another dimension is the channels",
            at=f"{unit}, from {line}" if line else unit,
            got=f"{rank} dimensions",
            expected=f"{expected}, as in the example inputs",
            hint="prepare with example inputs of that many dimensions, or keep the module in float with "
            "set_module_name(name, None)",
        )


GUARDS = (require_value, require_given, require_answer, require_rank)
