"""Finds what a forward assigns to: attributes are put back, and buffers are assigned to at the end of the graph."""

from __future__ import annotations

import copy
import inspect
import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node, Proxy

from fxquant.capture.proxies import IN_PLACE_NAMES
from fxquant.graph.query import BY_REQUEST, REASON, VALUE, is_shape_query

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""What torch keeps in a module for itself."""
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONSTANTS = (type, BuiltinFunctionType, torch.dtype, torch.device, torch.layout, torch.memory_format)
_HOOKS_OF_CALLS = ("_forward_hooks", "_forward_pre_hooks")


class NeverRead:
    """Stands, in a second trace, for what the first call left in an attribute: every call must write that before."""

    def __bool__(self) -> bool:
        raise TypeError("what an earlier call left in an attribute is read")

    __len__ = __eq__ = __hash__ = __bool__  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Change:
    """An attribute that a forward left as another one."""

    path: str
    """Of the module that has it."""
    module: nn.Module
    name: str
    after: Any
    was_tensor: bool = False
    of_sizes: bool = False
    """Whether it is made of the sizes of inputs, so that every call may make it anew."""


class StateAssignmentError(Exception):
    """A forward assigns to an attribute of its module that is no buffer: such state is no part of a graph."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(f"a change of self.{name}: a graph keeps only tensors that a module has from the start")
        self.module, self.name = module, name
        self.line = _line_that_changes(type(module), name)


def _line_that_changes(kind: type[nn.Module], name: str) -> str:
    try:
        source, first = inspect.getsourcelines(kind.forward)
        own = kind.forward.__code__.co_varnames[0]
    except (OSError, TypeError, AttributeError):  # no source: made in an interpreter, or built in
        return ""
    attribute = rf"\b{re.escape(own)}\.{re.escape(name)}\b"
    for pattern in (rf"{attribute}[^=]*=(?!=)", rf"{attribute}\.\w+\(", attribute):
        for offset, text in enumerate(source):
            if re.search(pattern, text):
                return f"{inspect.getsourcefile(kind)}:{first + offset}: {text.strip()}"
    return ""


class Attributes:
    """The attributes of every module of a model, as they are now; buffers are looked at as names, not as memory."""

    def __init__(self, model: nn.Module) -> None:
        self._snapshot_of = [
            (path, module, {name: Snapshot(value) for name, value in _own(module)}, dict(module._buffers))
            for path, module in model.named_modules()
        ]

    def changes(self, but: Iterable[str] = ()) -> list[Change]:
        """List the attributes that are, or hold, other values now.

        Of the model itself, new ones that ``but`` names do not count.
        """
        found = []
        for path, module, kept, buffers in self._snapshot_of:
            for name, value in _own(module):
                old = kept.get(name)
                if old is None or not old.matches(value):
                    was_tensor = old is not None and isinstance(old.value, Tensor)
                    found.append(Change(path, module, name, _snapshot_of(value), was_tensor))
            for name, value in module._buffers.items():
                if isinstance(value, Tensor) and value is not buffers.get(name):
                    found.append(Change(path, module, name, value))
        made = set(but) - {name for path, _, kept, _ in self._snapshot_of if not path for name in kept}
        return [change for change in found if change.path or change.name not in made]

    def see_all_state(self) -> bool:
        """Tell whether a change of any attribute would be seen: none is an object of another kind, or a hook."""
        hooked = any(getattr(module, hooks) for _, module, _, _ in self._snapshot_of for hooks in _HOOKS_OF_CALLS)
        return not hooked and all(one.is_complete for _, _, kept, _ in self._snapshot_of for one in kept.values())

    def put_back(self, but: Iterable[str] = ()) -> None:
        """Let attributes that are no buffers be as they were; ``but`` as above."""
        for change in self.changes(but):
            vars(change.module).pop(change.name, None)
        for _, module, kept, _ in self._snapshot_of:
            missing = [name for name in kept if name not in vars(module)]
            vars(module).update({name: kept[name].restored() for name in missing})


@contextmanager
def no_traced_attributes(module: nn.Module) -> Iterator[None]:
    """Find out whether ``module`` is given a traced value to keep outside of its buffers; that is then undone.

    Raises:
        StateAssignmentError: its forward assigned to one of its attributes.
    """
    stores: tuple[dict[str, Any], ...] = (vars(module), module._parameters)
    before = tuple(dict(store) for store in stores)
    yield
    changed = [
        name
        for store in stores
        for name, value in store.items()
        if isinstance(value, Proxy) and not is_from_sizes(value.node)
    ]
    for store, values in zip(stores, before, strict=True):
        for name in changed:
            if name in values:
                store[name] = values[name]
            else:
                store.pop(name, None)
    if changed:
        raise StateAssignmentError(module, changed[0])


def is_from_sizes(node: Node) -> bool:
    """Tell whether a value follows from shapes, dtypes and constants alone, so that every call may compute it anew."""
    pending, seen = [node], {node}
    while pending:
        one = pending.pop()
        if VALUE not in one.meta or one.op in ("placeholder", "call_module"):
            return False
        if is_shape_query(one) or (one.target is getattr and one.args[1] == "dtype"):
            continue
        new = [argument for argument in one.all_input_nodes if argument not in seen]
        seen.update(new)
        pending += new
    return True


def holds_proxy(value: Any) -> bool:
    """Tell whether a value is a proxy or holds one, in containers however deep."""
    pending, seen = [value], set()
    while pending:
        one = pending.pop()
        if isinstance(one, Proxy):
            return True
        if id(one) not in seen:
            seen.add(id(one))
            pending += _deep(one)
    return False


def _snapshot_of(value: Any) -> Any:
    """Return a value that stays what it is when the attributes are put back."""
    mutable = isinstance(value, (Tensor, *_CONTAINERS)) and not holds_proxy(value)
    return copy.deepcopy(value) if mutable else value


def _own(module: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in list(vars(module).items()) if name not in _OF_EVERY_MODULE)


class Snapshot:
    """A value, and what it held: every tensor and container in it, each once, so that a cycle ends."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._held: dict[int, tuple[Any, Any]] = {}
        """By ``id``: a tensor with its version and values, or a container with its items."""
        self.is_complete = True
        """Whether there is no object in it that may change and stay the same object."""
        pending = [value]
        while pending:
            one = pending.pop()
            if id(one) in self._held or not isinstance(one, (Tensor, *_CONTAINERS)):
                self.is_complete &= id(one) in self._held or _is_constant(one)
                continue
            held: Any = (one._version, one.detach().clone()) if isinstance(one, Tensor) else _items(one)
            self._held[id(one)] = one, held
            pending += _deep(one)

    def matches(self, value: Any) -> bool:
        """Tell whether a value is the same object as before and still holds the same items and numbers."""
        pending, seen = [(self.value, value)], set()
        while pending:
            old, new = pending.pop()
            if type(new) is not type(old):
                return False
            if id(old) not in self._held:
                if new is not old and not (isinstance(old, _PLAIN) and bool(new == old)):
                    return False
                continue
            _, held = self._held[id(old)]
            if isinstance(old, Tensor):
                if new is not old or new._version != held[0]:
                    return False
            elif (id(old), id(new)) not in seen:
                seen.add((id(old), id(new)))
                if len(new) != len(held) or (isinstance(new, dict) and new.keys() != held.keys()):
                    return False
                pairs = (
                    ((held[key], new[key]) for key in held) if isinstance(new, dict) else zip(held, new, strict=True)
                )
                pending += [(a, b) for a, b in pairs if a is not b or type(a) not in _PLAIN]
        return True

    def restored(self) -> Any:
        """Return the value as it was: the same tensors, with the values that they had, in the same containers."""
        for one, held in self._held.values():
            if not isinstance(one, Tensor):
                _fill(one, held)
            elif one._version != held[0]:
                with torch.no_grad():
                    one.copy_(held[1])
        return self.value


def _is_constant(value: Any) -> bool:
    """Tell whether an object cannot change: a number, a type, a function that closes over nothing."""
    if isinstance(value, partial):
        return all(map(_is_constant, (value.func, *value.args, *value.keywords.values())))
    if isinstance(value, FunctionType):
        return value.__closure__ is None
    return isinstance(value, (*_PLAIN, *_CONSTANTS))


def _items(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


def _deep(value: Any) -> Iterator[Any]:
    """Iterate over the items of a container that may hold others; anything else has none."""
    inner: Any = value if isinstance(value, _CONTAINERS) else ()
    return (item for item in (inner.values() if isinstance(inner, dict) else inner) if type(item) not in _PLAIN)


def _fill(container: Any, items: Any) -> None:
    """Give a container, that others may hold too, these items; one that cannot be changed has them still."""
    if isinstance(container, (dict, list, set, deque)):
        container.clear()
        (container.extend if isinstance(container, (list, deque)) else container.update)(items)


IN_PLACE = tuple(getattr(operator, f"i{name}") for name in IN_PLACE_NAMES)

BUFFER_STATE = "it computes what a buffer holds in the next call"


def assign_buffer(buffer: Tensor, value: Tensor) -> None:
    """``self.buffer = value``, in a graph: the buffer holds ``value`` from now on, whatever its shape and dtype."""
    with torch.no_grad():
        if buffer.shape == value.shape and buffer.dtype == value.dtype:
            buffer.copy_(value)
        else:
            buffer.data = value.detach().clone()


def changes_in_place(value: Node, path: str) -> bool:
    """Tell whether a value is the buffer itself, changed in place: ``self.count += 1`` assigns too, in vain."""
    node: Any = value
    while isinstance(node, Node) and (node.target in IN_PLACE or (node.op == "call_method" and _ends_in_place(node))):
        node = node.args[0]
    return isinstance(node, Node) and node.op == "get_attr" and node.target == path


def _ends_in_place(node: Node) -> bool:
    return str(node.target).endswith("_") and not str(node.target).endswith("__")


def store_at_the_end(graph: Graph, path: str, value: Node) -> None:
    """Let a graph assign ``value`` to the buffer ``path`` when all else is done.

    Whatever read the buffer before the assignment keeps reading a copy of what it was. What would round the state anew
    in each call has a reason to stay float: errors would add up, and small steps would be lost.
    """
    olds = []
    for read in [node for node in graph.nodes if node.op == "get_attr" and node.target == path]:
        with graph.inserting_after(read):
            old = graph.call_method("clone", (read,))
        read.replace_all_uses_with(old, delete_user_cb=lambda user, old=old: user is not old, propagate_meta=False)
        old.meta = dict(read.meta)
        olds.append(old)
    before = _reached((value,), lambda node: node.all_input_nodes)
    between = before & _reached(olds, lambda node: node.users)
    if any(node.op == "call_module" for node in between):  # a recurrent layer: its state is an activation like others
        between = set()
    for node in between | (set() if value.users else _read_by_none_but(value)):
        node.meta |= {REASON: BUFFER_STATE, BY_REQUEST: True}
    with graph.inserting_before(next(iter(reversed(graph.nodes)))):
        buffer = graph.get_attr(path)
        store = graph.call_function(assign_buffer, (buffer, value))
    store.meta[VALUE] = NoneType
    if olds:
        buffer.meta[VALUE] = olds[0].meta.get(VALUE)


def _reached(starts: Iterable[Node], step: Callable[[Node], Iterable[Node]]) -> set[Node]:
    found, pending = set(starts), list(starts)
    while pending:
        new = [node for node in step(pending.pop()) if node not in found]
        found.update(new)
        pending += new
    return found


def _read_by_none_but(value: Node) -> set[Node]:
    """``value``, and the nodes before it whose values only they read."""
    found = {value}
    for node in reversed(value.graph.nodes):
        if node.op in ("call_function", "call_method") and node.users and found.issuperset(node.users):
            found.add(node)
    return found
