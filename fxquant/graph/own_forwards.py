"""Forwards that were set on one module, in place of that of its class: they are called, so they are what is traced."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

_METHODS = frozenset(("forward", "_conv_forward"))
"""What computes the result of a module."""
_COMPILED_FROM = "_torchdynamo_orig_callable"
"""Attribute of what ``torch.compile`` gives for a function: that function."""
_CALLED = (FunctionType, MethodType, functools.partial)
"""What ``copy.deepcopy`` copies without the functions in it, which it takes as they are."""
_CONTAINERS = (list, tuple, set, dict)
_INLINING = "torch._dynamo.external_utils"
"""Module of a function that stands around a method there."""


def copy_own_forwards(model: nn.Module, memo: Mapping[int, Any]) -> None:
    """Let the forwards that were set on modules of a copy call the copy.

    ``copy.deepcopy`` takes functions as they are: ``m.forward = lambda x: 2 * old(x)`` would call the model that was
    copied. What ``torch.compile`` made of a forward becomes the forward again, which can be traced.

    Args:
        model: The model that was copied.
        memo: What ``copy.deepcopy`` filled: the id of each object -> its copy.
    """
    copies = _Copies(memo)
    for module in model.modules():
        copied = memo.get(id(module))
        if copied is None or copied is module:
            continue
        for name in vars(module).keys() & _METHODS:
            own = copies.of(vars(module)[name])
            if isinstance(own, MethodType) and own.__self__ is copied and own.__func__ is getattr(type(copied), name):
                del vars(copied)[name]  # the same as that of its class
            else:
                vars(copied)[name] = own


class _Copies:
    """What forwards hold, with the copies of modules, tensors and other objects in place of these.

    Args:
        memo: The id of each object that was copied -> its copy.
    """

    def __init__(self, memo: Mapping[int, Any]) -> None:
        self._memo = memo
        self._made: dict[int, Any] = {}
        self._names: dict[int, dict[str, Any]] = {}
        """Global names of functions that name parts of the model: the id of those -> the names of their copies."""

    def of(self, value: Any) -> Any:
        """Return the copy of an object, or a function or container that holds copies; anything else as it is."""
        if id(value) not in self._made:
            self._made[id(value)] = value  # meanwhile: what refers to itself ends here
            self._made[id(value)] = self._copied(value) if self._is_of_model(value, set()) else value
        return self._made[id(value)]

    def _copied(self, value: Any) -> Any:
        """Return the copy of a part of the model, or of what holds one."""
        if id(value) in self._memo and not isinstance(value, _CALLED):
            return self._memo[id(value)]
        if isinstance(value, FunctionType):
            source = _uncompiled(value)
            return self._function(value) if source is value else self.of(source)
        if isinstance(value, MethodType):
            return MethodType(self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, functools.partial):
            made = functools.partial(self.of(value.func), *map(self.of, value.args), **self._each(value.keywords))
            vars(made).update(self._each(vars(value)))
            return made
        return self._each(value) if type(value) is dict else type(value)(map(self.of, value))

    def _function(self, function: FunctionType) -> FunctionType:
        """Return a function of the same code, with copies in what it holds and names."""
        names, cells, named = function.__globals__, function.__closure__ or (), _near_names(function)
        # It stands in the table before what it holds is copied: it may be among that.
        own_names = names
        if any(self._is_of_model(value, set()) for value in named.values()):
            own_names = self._names.setdefault(id(names), dict(names))  # one for all functions of these names
        own_cells = tuple(CellType() for _ in cells)
        made = FunctionType(function.__code__, own_names, function.__name__, None, own_cells or None)
        self._made[id(function)] = made
        for cell, own in zip(cells, own_cells, strict=True):
            if _is_full(cell):
                own.cell_contents = self.of(cell.cell_contents)
        if own_names is not names:
            own_names.update(self._each(named))
        made.__defaults__ = function.__defaults__ and tuple(map(self.of, function.__defaults__))
        made.__kwdefaults__ = function.__kwdefaults__ and self._each(function.__kwdefaults__)
        made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
        made.__annotations__ = function.__annotations__
        vars(made).update(self._each(vars(function)))
        return made

    def _is_of_model(self, value: Any, seen: set[int]) -> bool:
        """Tell whether a value is a part of the model, or holds one, however deep."""
        if id(value) in seen:
            return False
        seen.add(id(value))
        if self._memo.get(id(value), value) is not value:
            return True
        if isinstance(value, FunctionType) and hasattr(value, _COMPILED_FROM):
            return True
        holds = isinstance(value, _CALLED) or type(value) in _CONTAINERS
        return holds and any(self._is_of_model(each, seen) for each in _held(value))

    def _each(self, values: Mapping[Any, Any]) -> dict[Any, Any]:
        return {name: self.of(value) for name, value in values.items()}


def _held(value: Any) -> Iterator[Any]:
    """Yield what a function, a method, a partial or a container holds, and the near names of a function."""
    if isinstance(value, FunctionType):
        yield from (cell.cell_contents for cell in value.__closure__ or () if _is_full(cell))
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        yield from vars(value).values()
        yield from _near_names(value).values()
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values(), *vars(value).values())
    else:
        yield from value.values() if isinstance(value, dict) else value


def _uncompiled(function: FunctionType) -> Any:
    """Return what ``torch.compile`` was given for a function that it gave; any other function as it is."""
    source: Any = getattr(function, _COMPILED_FROM, function)
    return source.__wrapped__ if getattr(source, "__globals__", {}).get("__name__") == _INLINING else source


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that a code, or one inside of it, looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _near_names(function: FunctionType) -> dict[str, Any]:
    """Return the global names of a function that may hold the model, with their values."""
    names = function.__globals__
    return {name: names[name] for name in _names_in(function.__code__) if _is_near(names.get(name), names)}


def _is_near(value: Any, names: Mapping[str, Any]) -> bool:
    """Tell whether a global name of a function may hold the model: one it stands beside, not what it imports."""
    if isinstance(value, (nn.Module, Tensor, MethodType, functools.partial, list, tuple, dict)):
        return True
    return isinstance(value, FunctionType) and value.__globals__ is names


def _is_full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the name was never given a value
        return False
