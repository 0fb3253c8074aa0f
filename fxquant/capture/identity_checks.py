"""Searches the code that a model can reach for comparisons of ``self.training`` by identity.

While a model is traced for training, ``self.training`` is a mark that equals False (``capture/modes.py``). ``is False``
tells it from False all the same, so code that may ask so is traced without marks.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"__main__"}
"""Packages whose code never compares an argument of the user's so, or never sees one."""
CALLABLES = (
    FunctionType,
    MethodType,
    staticmethod,
    classmethod,
    property,
    functools.partial,
    functools.cached_property,
)
"""Attributes of a class or an object that hold functions. Others may hold anything, and lead anywhere."""
_HOLD_NOTHING = frozenset({type(None), str, bytes, bool, int, float, complex, Tensor, nn.Parameter})


def asks_by_identity(root: nn.Module) -> bool:
    """Tell whether code of the model may compare ``self.training`` with True or False by identity.

    Code is searched that mentions ``training`` itself, and what such code refers to: methods and attributes of the
    model's modules, functions and classes of the modules it was written in, and what these refer to.
    """
    named = _named_in(root)
    pending = [(function, False) for functions in named.values() for function in functions]
    seen: set[tuple[CodeType, bool]] = set()
    while pending:
        function, is_told = pending.pop()
        codes = tuple(_nested(function.__code__))
        is_told = is_told or any(_mentions_training(code) for code in codes)
        if (function.__code__, is_told) in seen:
            continue
        seen.add((function.__code__, is_told))
        if is_told and any(_compares_with_bool(code) for code in codes):
            return True
        pending += [(found, is_told) for found in _referred_by(function, codes, named)]
    return False


def _named_in(root: nn.Module) -> dict[str, list[FunctionType]]:
    """Return the functions that a method or an attribute of any module of a model may run, by its name."""
    named: dict[str, list[FunctionType]] = defaultdict(list)
    classes = {base for module in root.modules() for base in _own_classes(type(module))}
    for base in classes:
        for name, item in vars(base).items():
            named[name] += _functions_of(item)
    for module in root.modules():
        for name, item in (*vars(module).items(), *module._modules.items()):
            if name not in ("_parameters", "_buffers", "_modules"):
                named[name] += _functions_of(item)
    return named


def _own_classes(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if not _is_library(base.__module__)]


def _is_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in LIBRARIES


def _functions_of(value: Any) -> list[FunctionType]:
    """Return the functions that a call of a value, or of a method of it, may run; none of libraries."""
    found: list[FunctionType] = []
    pending, seen = [value], set()
    while pending:  # values may hold each other
        item = pending.pop()
        if type(item) in _HOLD_NOTHING or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, FunctionType) and (not _is_library(item.__module__) or hasattr(item, "__wrapped__")):
            found.append(item)
        pending += reversed(_held_by(item))
    return found


def _held_by(value: Any) -> list[Any]:
    """Return what a value leads to: what it wraps, its items, or functions among its attributes."""
    if isinstance(value, FunctionType):
        return [getattr(value, "__wrapped__", None)]
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, (functools.partial, functools.cached_property)):
        return [value.func]
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    attributes = [] if isinstance(value, (type, nn.Module)) else _attributes_of(value)
    for base in _own_classes(value if isinstance(value, type) else type(value)):
        attributes += vars(base).values()
    return [item for item in attributes if isinstance(item, CALLABLES)]


def _attributes_of(value: Any) -> list[Any]:
    try:
        return list(vars(value).values())
    except Exception:  # it has none, or its own way to look them up fails
        return []


def _referred_by(
    function: FunctionType, codes: Iterable[CodeType], named: dict[str, list[FunctionType]]
) -> Iterator[FunctionType]:
    """Find what the names in a function may stand for."""
    names = {name for code in codes for name in code.co_names}
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # what it will hold may not be assigned yet
            values.append(cell.cell_contents)
    for value in values:
        if isinstance(value, ModuleType):
            if not _is_library(value.__name__):
                yield from (found for name in names for found in _functions_of(vars(value).get(name)))
        else:
            yield from _functions_of(value)
    for name in names:
        yield from named.get(name, ())


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a piece of code, and the functions, lambdas and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _mentions_training(code: CodeType) -> bool:
    return any("training" in names for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_consts))


def _compares_with_bool(code: CodeType) -> bool:
    """Tell whether one side of an ``is`` or ``is not`` is a bool that is written there, or a type is asked for it."""
    if {"isinstance", "bool"} <= set(code.co_names):
        return True
    if not any(isinstance(constant, bool) for constant in code.co_consts):
        return False
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    return any(
        instruction.opname == "IS_OP" and any(isinstance(each.argval, bool) for each in _operands(instructions[:index]))
        for index, instruction in enumerate(instructions)
    )


def _operands(before: list[dis.Instruction]) -> Iterator[dis.Instruction]:
    """Yield the instructions that load names, attributes and constants, right before another one."""
    for instruction in reversed(before):
        if not instruction.opname.startswith(("LOAD_", "COPY", "DUP_")):
            return
        yield instruction
