"""Forwards that were set on one module, in place of that of its class: they are called, so they are what is traced."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

_METHODS = frozenset(("forward", "_conv_forward"))
"""What computes the result of a module."""
_COMPILED_FROM = "_torchdynamo_orig_callable"
"""Attribute of what ``torch.compile`` gives for a function: that function."""
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
    """What forwards hold, with the copies of modules and tensors in place of these.

    Args:
        memo: The id of each module and tensor -> its copy.
    """

    def __init__(self, memo: Mapping[int, Any]) -> None:
        self._memo = memo
        self._made: dict[int, Any] = {}
        self._names: dict[int, dict[str, Any]] = {}
        """Global names of functions that name parts of the model: the id of those -> the names of their copies."""

    def of(self, value: Any) -> Any:
        """Return a module's or a tensor's copy, or a function that holds copies; anything else as it is."""
        if isinstance(value, (nn.Module, Tensor)):
            return self._memo.get(id(value), value)
        if not isinstance(value, (FunctionType, MethodType, functools.partial)):
            return value
        if id(value) not in self._made:
            self._made[id(value)] = value  # meanwhile: functions may name themselves
            self._made[id(value)] = self._copied(value)
        return self._made[id(value)]

    def _copied(self, value: Any) -> Any:
        if hasattr(value, _COMPILED_FROM):
            source = getattr(value, _COMPILED_FROM)
            is_inlined = getattr(source, "__globals__", {}).get("__name__") == _INLINING
            return self.of(source.__wrapped__ if is_inlined else source)
        if isinstance(value, MethodType):
            return MethodType(self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, FunctionType):
            return self._function(value)
        made = functools.partial(self.of(value.func), *map(self.of, value.args), **self._each(value.keywords))
        vars(made).update(self._each(vars(value)))
        return made

    def _function(self, function: FunctionType) -> FunctionType:
        """Return a function with copies in what it holds and names; the function itself if it holds nothing of it."""
        names, cells = function.__globals__, function.__closure__ or ()
        named = {name: names[name] for name in function.__code__.co_names if _is_near(names.get(name), names)}
        held = [cell.cell_contents for cell in cells if _is_full(cell)]
        held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values()]
        if all(self.of(value) is value for value in (*held, *named.values())):
            return function
        closure = tuple(CellType(self.of(cell.cell_contents)) if _is_full(cell) else cell for cell in cells)
        own_names = names
        if any(self.of(value) is not value for value in named.values()):
            own_names = self._names.setdefault(id(names), dict(names))  # one for all functions of these names
            own_names.update(self._each(named))
        made = FunctionType(function.__code__, own_names, function.__name__, None, closure or None)
        made.__defaults__ = function.__defaults__ and tuple(map(self.of, function.__defaults__))
        made.__kwdefaults__ = function.__kwdefaults__ and self._each(function.__kwdefaults__)
        made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
        vars(made).update(self._each(vars(function)))
        return made

    def _each(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.of(value) for name, value in values.items()}


def _is_near(value: Any, names: Mapping[str, Any]) -> bool:
    """Tell whether a global name of a function may hold the model: one it stands beside, not what it imports."""
    if isinstance(value, (nn.Module, MethodType, functools.partial)):
        return True
    return isinstance(value, FunctionType) and value.__globals__ is names


def _is_full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the name was never given a value
        return False
