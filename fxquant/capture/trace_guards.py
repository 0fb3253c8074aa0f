"""Answers what code asks while it is traced, and guards the answer: other inputs must give the same one.

An answer is fixed where it follows from the shapes of the example. The guard names the line of the user's code.
"""

from __future__ import annotations

import dis
import linecache
import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fxquant.errors import InputError, TracingError, is_library_file
from fxquant.graph.inputs import describe_value, is_given, spelled


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
        example: What it was when the model was prepared, in words; empty if no example was given.
        name: Its name.

    Raises:
        InputError: it was left out.
    """
    if value is None and not example:
        raise InputError(
            f"the argument {name!r} is left out, and was not when the model was prepared without example inputs",
            got="None",
            expected=f"a value: code that asks whether {name!r} is None went the way of a call that gives it",
            hint=f"give {name!r}, or prepare with example inputs that leave it out",
        )
    if value is None:
        raise InputError(
            f"the argument {name!r} was given when the model was prepared, and is left out now",
            got="None",
            expected=example,
            hint=f"give {name!r}, or leave it out of the example inputs too, and prepare again",
        )


def require_items(
    value: Mapping[Any, Any], given: Sequence[tuple[Any, str]], left_out: Sequence[Any] | None, holder: str, line: str
) -> None:
    """Stand in a graph for code that asked which keyword arguments, or which items of a dict, a call gives.

    Args:
        value: The arguments of ``**kwargs``, or the dict.
        given: The names that code found in the example, and what they were, in words.
        left_out: The names that code did not find; None: it went through all that were given.
        holder: How the dict is spelled, ``batch``; empty for the arguments of ``**kwargs``.
        line: ``file:line: source`` of the user's code, or empty.

    Raises:
        InputError: one is left out that was given, or is given that was left out.
    """
    known = [key for key, _ in given]
    for key, example in given:
        if key not in value:
            name, spelled = _name_of_item(key, holder)
            raise InputError(
                f"{name} was given when the model was prepared, and is left out now",
                at=line or None,
                got=f"no {spelled}",
                expected=example,
                hint=f"give {spelled}, or leave it out of the example inputs too, and prepare again",
            )
    for key in [key for key in value if key not in known] if left_out is None else left_out:
        if key in value:
            name, spelled = _name_of_item(key, holder)
            raise InputError(
                f"{name} was left out when the model was prepared, and is given now",
                at=line or None,
                got=describe_value(value[key]),
                expected=f"no {spelled}",
                hint=f"leave {spelled} out, or give it in the example inputs too, and prepare again",
            )


def items_of(node: Node, example: Mapping[Any, Any], keys: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Return what ``require_items`` takes, but for the line: which of these keys the example has; None: of all."""
    given = tuple((key, describe_value(example[key])) for key in example if keys is None or key in keys)
    left_out = None if keys is None else tuple(key for key in keys if key not in example)
    return given, left_out, "" if str(node.target).startswith("**") else spelled(node)


def _name_of_item(key: Any, holder: str) -> tuple[str, str]:
    """Return ``the argument 'mask'`` and ``'mask'``, or ``the item batch['mask']`` and ``batch['mask']``."""
    spelled = f"{holder}[{key!r}]" if holder else repr(key)
    return f"the {'item' if holder else 'argument'} {spelled}", spelled


def require_count(value: Sequence[Any] | Mapping[Any, Any], count: int | bool, name: str, line: str) -> None:
    """Stand in a graph for code that asked how many arguments or items a call gives.

    Args:
        value: A list, a tuple or a dict of inputs, or the arguments of ``*args`` or ``**kwargs``.
        count: How many were in it on the example; True or False: whether there were any.
        name: Its name, as ``*args``.
        line: ``file:line: source`` of the user's code, or empty.

    Raises:
        InputError: there is another number of them.
    """
    if (bool(value) if isinstance(count, bool) else len(value)) != count:
        raise InputError(
            f"another number of items is given in {name} than when the model was prepared",
            at=line or None,
            got=str(len(value)),
            expected={True: "at least 1", False: "0"}[count] if isinstance(count, bool) else str(count),
            hint=f"give as many in {name}, or give this number in the example inputs too, and prepare again",
        )


def count_of(node: Node, count: int | bool) -> tuple[int | bool, str]:
    """Return what ``require_count`` takes, but for the line."""
    target = str(node.target)
    return count, target if node.op == "placeholder" and target.startswith("*") else spelled(node)


_OTHER = {
    "sizes": ("inputs of other sizes: on these", "example inputs of this size"),
    "dtypes": ("inputs of another dtype: on these", "example inputs of this dtype"),
    "devices": ("inputs on another device: on these", "example inputs on this device"),
    "values": ("another value of an argument: with this one", "this value in the example inputs"),
}
"""What an answer follows from -> what differs, and what to prepare with."""


def require_answer(value: Any, answer: Any, line: str, source: str = "sizes") -> None:
    """Stand in a graph for a branch, a loop or a number that the user's code took from the shapes of the example.

    Args:
        value: What it depends on.
        answer: What it was on the example: a bool for a branch, else a number.
        line: ``file:line: source`` of the user's code, or empty.
        source: What that follows from: a key of ``_OTHER``.

    Raises:
        InputError: these inputs give another answer, so the code would do something else than what was traced.
    """
    got = value
    if isinstance(answer, bool):  # a branch, not bool(value): compilers keep that as a symbol, which equals no bool
        got = True if value else False  # noqa: SIM210
    if got != answer:
        other, example = _OTHER[source]
        raise InputError(
            f"the model was prepared for {other} it would compute something else",
            at=line or None,
            got=repr(got),
            expected=repr(answer),
            hint=f"prepare it again with {example}",
        )


def source_of_answer(node: Node) -> str:
    """Tell what a number or a bool follows from: a key of ``_OTHER``."""
    if node.op == "placeholder" or (is_given(node) and node.target is operator.getitem):
        return "values"
    target = node.args[1] if node.target is getattr else node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if (source := _SOURCES.get(name)) is not None:
        return source
    if name in SHAPE_QUESTIONS:
        return "sizes"
    found = {source_of_answer(used) for used in node.all_input_nodes}
    return next((source for source in ("dtypes", "devices", "values") if found == {source}), "sizes")


def require_exported(value: Any, answer: Any, condition: str) -> None:
    """Stand in a graph for a size that a program of ``torch.export`` has as a number, or a condition on its sizes.

    Args:
        value: What it depends on.
        answer: What it was on export: a bool for a condition, else a number.
        condition: It, as text.

    Raises:
        InputError: it is another one, so the program would compute something else than the exported model.
    """
    got = value
    if isinstance(answer, bool):
        got = True if value else False  # noqa: SIM210 - as in require_answer
    if got != answer:
        raise InputError(
            "the program was exported for inputs of other sizes: on these it would compute something else",
            at=condition,
            got=repr(got),
            expected=repr(answer),
            hint="give example inputs of this size, or torch.export dynamic_shapes; or leaf_modules=[...]",
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


GUARDS = (require_value, require_given, require_items, require_count, require_answer, require_exported, require_rank)

_QUESTIONS = (
    "size dim ndimension numel nelement stride element_size storage_offset is_contiguous is_floating_point is_complex "
    "get_device shape ndim dtype device layout itemsize nbytes names is_cuda is_cpu len result_type"
)
SHAPE_QUESTIONS = frozenset(_QUESTIONS.split())
"""Methods, functions and attributes that answer from shape, dtype and device alone."""

_SOURCES = {
    **dict.fromkeys(("dtype", "is_floating_point", "is_complex", "result_type", "element_size", "itemsize"), "dtypes"),
    **dict.fromkeys(("device", "is_cuda", "is_cpu", "get_device"), "devices"),
}
"""Questions that no size answers."""

_BY_VALUES = "nonzero argwhere masked_select unique unique_consecutive bincount nms batched_nms item tolist"
SHAPED_BY_VALUES = frozenset(_BY_VALUES.split())
"""Operators whose result has a shape that depends on values, or is a value."""

MASKS = (torch.bool, torch.uint8)
"""Indexing with a tensor of these picks as many elements as are true."""


def is_fixed(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> bool:
    """Tell whether the shape of a result, or its value if it is no tensor, is the same for all values of the inputs.

    Args:
        target: Function, or name of a method.
        args: Arguments, on the example.
        kwargs: Keyword arguments, on the example.
        value: The result on the example.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name in SHAPED_BY_VALUES:
        return False
    if name in ("getitem", "__getitem__", "contains") and not isinstance(args[0], Tensor):
        return True  # of a list or a dict: fixed if that is
    if name == "getattr":
        name = args[1]
    if _holds_tensor(value):
        if name in ("getitem", "__getitem__"):
            return not _holds_tensor(args[1], MASKS)
        if name == "where":
            return len(args) + len(kwargs) > 1
        if name == "repeat_interleave":
            return not _holds_tensor((args[1:], kwargs)) or "output_size" in kwargs
        return True
    if name in ("getitem", "__getitem__", "get") and not isinstance(args[0], Tensor):
        return True
    return name in SHAPE_QUESTIONS or not _holds_tensor((args, kwargs))


def _holds_tensor(value: Any, dtypes: tuple[torch.dtype, ...] = ()) -> bool:
    """Tell whether a structure of arguments holds a tensor, of one of these dtypes if any are given."""
    if isinstance(value, Tensor):
        return not dtypes or value.dtype in dtypes
    if isinstance(value, dict):
        value = tuple(value.values())
    return isinstance(value, (tuple, list)) and any(_holds_tensor(item, dtypes) for item in value)


def user_stack(frame: FrameType | None, below: CodeType) -> str:
    """Return the user's frames from ``frame`` out to the call of ``below``, innermost last, as Python prints them."""
    lines: list[str] = []
    while frame is not None and frame.f_code is not below:
        code, number = frame.f_code, frame.f_lineno
        if not is_library_file(code.co_filename):
            source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
            lines.append(f'File "{code.co_filename}", line {number}, in {code.co_name}\n    {source}')
        frame = frame.f_back
    return "\n  ".join(reversed(lines))


def read_after_its_trace(line: str) -> TracingError:
    """Return the error to raise where code reads a traced value of an earlier trace, which a table of its own kept.

    Args:
        line: The user's line that reads it.
    """
    return TracingError(
        "the model's code keeps values between calls, and found one that was kept while another graph was traced",
        at=line or None,
        got="a traced value, not a tensor",
        expected="tables outside of the model (a global dict, a closure) that hold tensors",
        hint="empty the table, and call the model once before it is prepared, so that it is filled with tensors",
    )


def user_line(frame: FrameType | None, below: CodeType) -> str:
    """``file:line: source`` of the innermost of the user's frames within ``below``; empty if there is none."""
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = None if frame.f_code is below else frame.f_back
    if frame is None:
        return ""
    source = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}: {source}"


def instruction(frame: FrameType | None) -> tuple[int, int]:
    """Identify the instruction that a frame is at: the frame and the offset in its code."""
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)


@lru_cache(maxsize=256)
def unpacked_names(code: CodeType, last: int) -> int:
    """Count the names of the ``a, b = x`` that asked for an iterator; 0 if another instruction did."""
    instruction = next((one for one in dis.get_instructions(code) if one.offset == last), None)
    if instruction is None or instruction.opname != "UNPACK_SEQUENCE":
        return 0
    return int(instruction.argval)
