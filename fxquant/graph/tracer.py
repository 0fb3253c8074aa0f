"""Runs a forward on proxies: what stays whole, where each node comes from, in-place operators as what they are."""

from __future__ import annotations

import linecache
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node, Proxy, Tracer

from fxquant.errors import InputError, is_library_file
from fxquant.graph.query import canonical_type
from fxquant.graph.untraceable import StateAssignmentError

LeafModules = Sequence[type[nn.Module] | str]


class QuantTracer(Tracer):
    """A tracer that keeps in-place operators in place, parameters and buffers by name, and the user's lines."""

    proxy_buffer_attributes = True

    def __init__(
        self,
        leaf_modules: LeafModules = (),
        leaf_types: Sequence[type[nn.Module]] = (),
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        """``bound``: argument name -> example value, to fix those that code branches on."""
        super().__init__()
        self._leaf_names = {item for item in leaf_modules if isinstance(item, str)}
        self._leaf_classes = tuple(item for item in leaf_modules if not isinstance(item, str))
        self._leaf_types = set(leaf_types)
        self._fixed = {name: value for name, value in (bound or {}).items() if type(value) in (NoneType, bool, str)}
        self._names: dict[int, str] = {}
        self.failed: tuple[BaseException, str, type[nn.Module]] | None = None
        """The last error that left a submodule: (error, path of the innermost module it left, its type)."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether the call of ``m`` becomes one node."""
        if module_qualified_name in self._leaf_names or isinstance(m, self._leaf_classes):
            return True
        if type(m) in self._leaf_types:
            return True
        kind = canonical_type(m)
        if kind is not None:
            return not issubclass(kind, nn.Sequential)
        return super().is_leaf_module(m, module_qualified_name) and type(m).__module__.startswith("torch.nn.")

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Trace the call of ``m``, and remember where an error came from."""
        depth = len(self.module_stack)
        try:
            with no_traced_state(m):
                return super().call_module(m, forward, args, kwargs)
        except Exception as error:
            if self.failed is None or self.failed[0] is not error:
                self.failed = (error, self.path_of_module(m), type(m))
            while len(self.module_stack) > depth:
                self.module_stack.popitem()
            raise

    def proxy(self, node: Node) -> Proxy:
        """Wrap ``node`` in a proxy that records ``x += y`` as what it is."""
        return TensorProxy(node, self)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Give parameters and buffers as proxies whose shape is known."""
        if not isinstance(attr_val, Tensor):
            return attr_val
        name = self._names.get(id(attr_val))
        if name is None:
            return attr_val
        if name not in parameter_proxy_cache:
            parameter_proxy_cache[name] = self.create_proxy(
                "get_attr", name, (), {}, proxy_factory_fn=lambda node: KnownTensorProxy(node, self, attr_val)
            )
        return parameter_proxy_cache[name]

    def trace(self, root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None) -> Graph:
        """As ``Tracer.trace``."""
        if isinstance(root, nn.Module):
            named = (*root.named_parameters(), *root.named_buffers())
            self._names = {id(tensor): name for name, tensor in named}
            with no_traced_state(root):
                return super().trace(root, concrete_args)
        return super().trace(root, concrete_args)

    def _proxy_placeholder(self, name: str, concrete_args: Any, sig: Any, fn_for_analysis: Any) -> Any:
        # concrete_args would do this too, but renames the argument, so that no keyword call works any more.
        proxy = super()._proxy_placeholder(name, None, sig, fn_for_analysis)
        if name not in self._fixed:
            return proxy
        value = self._fixed[name]
        self.create_proxy("call_function", require_value, (proxy, value, name), {})
        return value

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        """Create a node that knows the user's lines which made it."""
        # torch's own recording of stack traces takes seconds, once, to import what it needs.
        node = super().create_node(*args, **kwargs)
        node.stack_trace = _user_stack(sys._getframe(1))
        return node


def _user_stack(frame: FrameType | None) -> str:
    """The user's frames below the call of ``QuantTracer.trace``, innermost last, as Python prints them."""
    lines: list[str] = []
    while frame is not None and frame.f_code is not QuantTracer.trace.__code__:
        code, number = frame.f_code, frame.f_lineno
        if not is_library_file(code.co_filename):
            source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
            lines.append(f'File "{code.co_filename}", line {number}, in {code.co_name}\n    {source}')
        frame = frame.f_back
    return "\n  ".join(reversed(lines))


@contextmanager
def no_traced_state(module: nn.Module) -> Iterator[None]:
    """Find out whether ``module`` is given a traced value to keep; its state is then put back.

    Raises:
        StateAssignmentError: its forward assigned to one of its attributes or buffers.
    """
    stores: tuple[dict[str, Any], ...] = (vars(module), module._buffers, module._parameters)
    before = tuple(dict(store) for store in stores)
    yield
    changed = [name for store in stores for name, value in store.items() if isinstance(value, Proxy)]
    for store, values in zip(stores, before, strict=True):
        for name in changed:
            if name in values:
                store[name] = values[name]
            else:
                store.pop(name, None)
    if changed:
        raise StateAssignmentError(module, changed[0])


def require_value(value: Any, expected: Any, name: str) -> None:
    """Stand in a graph for an argument that tracing fixed to one value.

    Raises:
        InputError: the argument has another value.
    """
    if type(value) is not type(expected) or value != expected:
        raise InputError(
            f"the argument {name!r} was fixed when the model was prepared",
            got=repr(value),
            expected=repr(expected),
            hint=f"give {name!r} that value in the example inputs, and prepare again",
        )


class TensorProxy(Proxy):
    """A proxy that also records in-place operators and item assignment.

    Without them Python falls back from ``x += y`` to ``x = x + y``, and other names of ``x`` miss the change.
    """

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


def _record_in_place(name: str) -> Callable[[Any, Any], Any]:
    function = getattr(operator, f"i{name}")

    def method(self: Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {}, name=name)

    return method


_OPERATORS = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift"
for _name in _OPERATORS.split():
    setattr(TensorProxy, f"__i{_name}__", _record_in_place(_name))


class KnownTensorProxy(TensorProxy):
    """A parameter or buffer: questions about its shape have an answer while tracing."""

    def __init__(self, node: Node, tracer: Tracer, tensor: Tensor) -> None:
        super().__init__(node, tracer)
        self.known = tensor

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
