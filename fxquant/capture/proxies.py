"""Proxies that know what they are on the example: questions about shapes have an answer while tracing."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import Node, Proxy, Tracer
from torch.fx.proxy import Attribute

from fxquant.capture.trace_guards import count_of, items_of, require_count, require_items, unpacked_names
from fxquant.errors import warn
from fxquant.graph.containers import is_of_own_class, maker_of
from fxquant.graph.inputs import is_given


class Unknown:
    """Stands for the value of a proxy that was not run."""


UNKNOWN = Unknown()

ANSWERED = ("is_nested", "is_sparse", "is_quantized", "is_mkldnn", "is_meta", "requires_grad", "grad_fn")
"""Attributes of tensors that are the same on all inputs of a model, so that nothing of them needs to be recorded."""


class AnsweringTracer(Protocol):
    """The interface of a tracer whose proxies answer questions about shapes."""

    def create_proxy(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    number: int
    """Of the trace: no two have the same."""
    finished: bool
    """Whether the trace has ended: what is left of its proxies lies in tables of the user's code."""

    def answer(self, proxy: TensorProxy, value: Any, frame: FrameType | None, guard: Any = None) -> None:
        """Write a guard: ``proxy`` must give ``value`` on other inputs as well.

        ``guard``: one of inputs, which takes a tuple in place of the value; None: ``require_answer``.
        """

    def answer_index(self, proxy: TensorProxy, frame: FrameType | None) -> None:
        """Return the same for a number that C code asked for, perhaps only to see whether it is one."""

    def torch_called(self, frame: FrameType | None) -> None:
        """Drop the guards for indices of this call: they become arguments of a node."""


class TensorProxy(Proxy):
    """A proxy that also records in-place operators and item assignment, and knows its value on the example.

    Without the former Python falls back from ``x += y`` to ``x = x + y``, and other names of ``x`` miss the change.
    Arithmetic on sizes stays in the graph. Where Python needs an answer (a branch, a loop, an index), it is that of the
    example, and a guard in the graph sees to it that other inputs give the same. The values of tensors give no answers.
    """

    tracer: Any
    _example: Any = UNKNOWN
    _fixed: bool = True
    _counted: Node | None = None
    """Where the graph takes its length, which is guarded."""

    def learn(self, example: Any, fixed: bool = True) -> None:
        """Keep what the value is on the example.

        ``fixed``: it (of a tensor its shape) is the same for all inputs that differ from the example in values only.
        """
        self._example, self._fixed = example, fixed

    @property
    def example(self) -> Any:
        """Return the value on the example; UNKNOWN if it was not run."""
        return self._example

    @property
    def fixed(self) -> bool:
        """True if the value follows from shapes and constants, and not from the values of tensors."""
        return self._fixed

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __getattr__(self, name: str) -> Any:
        if self.example is UNKNOWN or name.startswith("__"):
            return ExampleAttribute(self, name)
        if isinstance(self.example, Tensor) and name in ANSWERED:
            return getattr(self.example, name)
        if isinstance(self.example, Mapping) and name == "get":
            return lambda key, default=None: self[key] if key in self else default  # noqa: SIM401 - this is get
        if isinstance(self.example, Mapping) and name in ("items", "values"):
            return lambda: [(key, self[key]) if name == "items" else self[key] for key in self.keys()]
        if not _has_attribute(self.example, name):
            raise AttributeError(f"{type(self.example).__name__!r} object has no attribute {name!r}")
        return ExampleAttribute(self, name)

    @property
    def answers(self) -> bool:
        """True if Python may have the value: it is known, is no tensor, and follows from shapes."""
        return self.example is not UNKNOWN and self.fixed and not isinstance(self.example, Tensor)

    def __bool__(self) -> bool:
        if not self.answers:
            return super().__bool__()
        if self._is_counted:
            self.tracer.answer(self, count_of(self.node, bool(self.example)), sys._getframe(1), require_count)
        else:
            self.tracer.answer(self, bool(self.example), sys._getframe(1))
        return bool(self.example)

    def __hash__(self) -> int:
        """Hash a known number, string, shape or dtype by its value, with a guard: it is looked up in a table."""
        if not (self.answers and isinstance(self.example, _HASHED)):
            return object.__hash__(self)
        if not self.tracer.finished:
            self.tracer.answer(self, self.example, sys._getframe(1))
        return hash(self.example)

    def __eq__(self, other: object) -> Any:
        """Compare while tracing. Later a proxy is equal to itself alone: a table that kept one as a key has no hit."""
        if self.tracer.finished or (isinstance(other, TensorProxy) and other.tracer.finished):
            return self is other
        return self.tracer.create_proxy("call_function", operator.eq, (self, other), {})

    def __repr__(self) -> str:
        """Name the node, and the trace: a table that has the text as a key has no hit in another trace."""
        return f"Proxy({self.node.name}, of trace {self.tracer.number})"

    def __str__(self) -> str:
        if self.answers and isinstance(self.example, (torch.device, torch.dtype)):
            return str(self.example)  # they are the same for all inputs
        return AnsweredText(self) if self.answers and type(self.example) is int else repr(self)

    def __format__(self, form: str) -> str:
        return repr(self)  # of a message; a guard would fix sizes for the sake of it

    def decide(self, frame: FrameType | None) -> Any:
        """Return the value on the example, guarded; the proxy itself where Python may not have it."""
        if not self.answers:
            return self
        self.tracer.answer(self, self.example, frame)
        return self.example

    def __index__(self) -> int:
        if not (self.answers and isinstance(self.example, int)):
            raise TypeError(f"'{type(self).__name__}' object cannot be interpreted as an integer")
        self.tracer.answer_index(self, sys._getframe(1))
        return int(self.example)

    def __int__(self) -> int:
        return int(self._number("int()"))

    def __float__(self) -> float:
        return float(self._number("float()"))

    def _number(self, asked: str) -> Any:
        if not (self.answers and isinstance(self.example, (int, float))):
            raise TypeError(f"{asked} argument must be a string or a real number, not {type(self).__name__!r}")
        self.tracer.answer(self, self.example, sys._getframe(2))
        return self.example

    def __round__(self, digits: int | None = None) -> Any:
        return self.tracer.create_proxy("call_function", round, (self, digits), {})

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __len__(self) -> int:
        if self.example is UNKNOWN or not self.fixed or not hasattr(self.example, "__len__"):
            return super().__len__()
        return self._length(sys._getframe(1))

    def __contains__(self, item: Any) -> bool:
        if not self.answers or isinstance(item, Proxy):
            raise TypeError("'in' on a tensor, whose values are not known")
        if self._is_counted and isinstance(self.example, Mapping):
            self.tracer.answer(self, items_of(self.node, self.example, (item,)), sys._getframe(1), require_items)
        else:
            found = self.tracer.create_proxy("call_function", operator.contains, (self, item), {})
            self.tracer.answer(found, item in self.example, sys._getframe(1))
        return item in self.example

    def keys(self) -> Any:
        """Return the keys of a dict, guarded; it can then be passed on as keyword arguments."""
        if not (self.answers and isinstance(self.example, Mapping)):
            return super().keys()
        if self._is_counted:
            self.tracer.answer(self, items_of(self.node, self.example, None), sys._getframe(1), require_items)
            return list(self.example)
        self._length(sys._getframe(1))
        return [key for key in self.example if key in self]

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        count = unpacked_names(frame.f_code, frame.f_lasti)
        if count:
            return map(self.__getitem__, range(count))
        if self.answers and isinstance(self.example, Mapping):
            return iter(self.keys())
        if self.answers and isinstance(self.example, (tuple, list)):
            return map(self.__getitem__, range(self._length(frame)))
        return iter(self.tracer.iter(self))

    def __getitem__(self, index: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.getitem, (self, index), {})

    def _length(self, frame: FrameType | None) -> int:
        """Return the length, guarded."""
        if self._is_counted:
            self.tracer.answer(self, count_of(self.node, len(self.example)), frame, require_count)
            return len(self.example)
        if self._counted is None or self._counted._erased:  # Python asks twice, first for a hint
            count = self.tracer.create_proxy("call_function", len, (self,), {})
            self.tracer.answer(count, len(self.example), frame)
            self._counted = count.node
        return len(self.example)

    @property
    def _is_counted(self) -> bool:
        """Tell whether the value is a list, a tuple or a dict of inputs, or all of ``*args`` or ``**kwargs``."""
        return isinstance(self.example, (Mapping, list, tuple)) and is_given(self.node)

    @classmethod
    def __torch_function__(
        cls, orig_method: Any, types: Any, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Trace the call, for proxies of several kinds. Torch's argument parser has asked for indices before."""
        frame = sys._getframe(1)
        for proxy in proxies_in((args, kwargs)):
            proxy.tracer.torch_called(frame)
            break
        return Proxy.__torch_function__.__func__(Proxy, orig_method, types, args, kwargs)  # type: ignore[attr-defined]


_HASHED = (int, float, str, tuple, torch.dtype, torch.device)


class AnsweredText(str):
    """``str(x.shape[1])``: the number is guarded where the text is compared or looked up, not where it is printed."""

    _proxy: TensorProxy

    def __new__(cls, proxy: TensorProxy) -> AnsweredText:
        text = super().__new__(cls, proxy.example)
        text._proxy = proxy
        return text

    def __hash__(self) -> int:
        self._proxy.decide(sys._getframe(1))
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        self._proxy.decide(sys._getframe(1))
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


class ExampleAttribute(Attribute, TensorProxy):
    """``x.shape``: a node only if something uses it as a value; calling it is a method call."""

    @property
    def node(self) -> Node:  # type: ignore[override]
        """Return the node, made when it is first asked for."""
        if self._node is None:
            self._attribute = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {})
            self._node = self._attribute.node
        return self._node

    @property
    def example(self) -> Any:
        """Return the value of the attribute on the example."""
        return self._attribute.example if self.node is not None else UNKNOWN

    @property
    def fixed(self) -> bool:
        """True if the attribute follows from shapes and constants."""
        return bool(self._attribute.fixed) if self.node is not None else True

    def __getattr__(self, name: str) -> Any:
        if name in ("_attribute", "_node", "root", "attr", "tracer"):
            raise AttributeError(name)
        return super().__getattr__(name)


class KnownTensorProxy(TensorProxy):
    """A parameter or buffer: questions about its shape have an answer that no input changes."""

    def __init__(self, node: Node, tracer: Any, tensor: Tensor) -> None:
        super().__init__(node, tracer)
        self.known = tensor
        self.learn(tensor)

    @property
    def shape(self) -> torch.Size:
        return self.known.shape

    @property
    def ndim(self) -> int:
        return self.known.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.known.dtype

    def size(self, dim: int | None = None) -> Any:
        return self.known.size() if dim is None else self.known.size(dim)

    def dim(self) -> int:
        return self.known.dim()

    def numel(self) -> int:
        return self.known.numel()

    def __len__(self) -> int:
        return len(self.known)


def _record_in_place(name: str) -> Callable[[Any, Any], Any]:
    function = getattr(operator, f"i{name}")

    def method(self: Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {}, name=name)

    return method


_IN_PLACE = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift"
IN_PLACE_NAMES = tuple(_IN_PLACE.split())
"""Operators of Python that have a form in place: ``iadd`` for ``add``."""

for _name in IN_PLACE_NAMES:
    setattr(TensorProxy, f"__i{_name}__", _record_in_place(_name))


def proxies_in(value: Any) -> Iterator[TensorProxy]:
    """Yield every proxy in a structure of arguments."""
    if isinstance(value, TensorProxy):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from proxies_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from proxies_in(item)
    elif isinstance(value, slice):
        yield from proxies_in((value.start, value.stop, value.step))


def with_items(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments, of a sequence such as ``chunk`` gives each item, with a guard on how many there are."""
    return tuple(list(a) if isinstance(a, TensorProxy) and a.answers and _is_sequence(a) else a for a in args)


def _is_sequence(proxy: TensorProxy) -> bool:
    return type(proxy.example) in (tuple, list)


def remade(tracer: Tracer, value: Any) -> Node | None:
    """Create the node that makes a container of a class of its own, as ``OrderedDict``; None of other values."""
    if not is_of_own_class(value):
        return None
    if (maker := maker_of(value)) is None:
        name = type(value).__name__
        warn(
            "a container of a class of its own becomes a plain one where the model is quantized",
            got=name,
            expected=f"a class that makes the same again of its items: {name}(list of items)",
        )
        return None
    return tracer.create_node("call_function", maker[0], tuple(tracer.create_arg(item) for item in maker[1]), {})


def on_example(value: Any) -> Any:
    """Return a structure of arguments, with what each proxy is on the example in its place."""
    if isinstance(value, TensorProxy):
        return value.example
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(on_example(item) for item in value))
    if type(value) in (tuple, list, torch.Size):
        return type(value)([on_example(item) for item in value])
    if isinstance(value, dict):
        return {key: on_example(item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(on_example(value.start), on_example(value.stop), on_example(value.step))
    return value


def _has_attribute(value: Any, name: str) -> bool:
    """``hasattr``, but no property of a tensor is run (``.grad`` of some warns)."""
    return hasattr(type(value), name) or name in getattr(value, "__dict__", {})
