"""Tensors that a forward makes of numbers alone, and then writes traced values into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import Node, Proxy
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fxquant.graph.aliases import changed_argument
from fxquant.graph.query import VALUE

VIEWS = ("T", "mT", "H", "mH", "data", "real", "imag")
"""Attributes of a tensor that hold its values."""


FACTORIES = frozenset(
    (torch.zeros, torch.ones, torch.full, torch.empty, torch.eye, torch.arange, torch.linspace, torch.tensor)
)


class FactoryTensorTracer(Protocol):
    """A tracer that knows which proxy stands for such a tensor."""

    @property
    def runs_example(self) -> bool: ...

    def proxy_of(self, tensor: Tensor) -> Proxy: ...

    def constant(self, value: Tensor) -> Node: ...

    def create_proxy(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class TracedFactories(TorchFunctionMode):
    """Traces functions that make tensors of numbers alone, so that views of what they make can be followed.

    That costs what code may otherwise do: branch on values that are the same in all calls.
    """

    def __init__(self, tracer: FactoryTensorTracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FACTORIES and not self._tracer.runs_example:
            return self._tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class WrittenTensor(Tensor):
    """A factory tensor that traced values were written into: until the trace ends, calls that read it are traced."""

    tracer: FactoryTensorTracer

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` on proxies, unless the tracer itself asks, or only a shape or the like is wanted."""
        kwargs = kwargs or {}
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        is_attribute = func.__name__ == "__get__"
        written = next(item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, WrittenTensor))
        if written.tracer.runs_example or (is_attribute and name not in VIEWS):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(
            WrittenTensor, lambda tensor: tensor.tracer.proxy_of(tensor), (args, kwargs)
        )
        if is_attribute:
            return getattr(args[0], name)
        if args and isinstance(args[0], Proxy) and hasattr(Tensor, name):
            return getattr(args[0], name)(*args[1:], **kwargs)
        return func(*args, **kwargs)


class FactoryTensors:
    """Maps each factory tensor to the node that gives its present value."""

    def __init__(self, tracer: FactoryTensorTracer) -> None:
        self._tracer = tracer
        self.any_written = False
        """Whether traced values were written into any."""
        self._known: dict[int, tuple[Tensor, int, Node]] = {}  # by identity: the tensor, its version, the node
        self._written: list[Tensor] = []

    def node_of(self, tensor: Tensor) -> Node:
        """Its node; changes that the forward made by numbers alone since the last one give a new one.

        Raises:
            TypeError: traced values were written into it, or into a view of it, in a way that no node gives.
        """
        known = self._known.get(id(tensor))
        if known is None or known[1] != tensor._version:
            if isinstance(tensor, WrittenTensor):
                raise TypeError(
                    "a tensor that is the same in all calls is read after a view of it was written to; new_zeros(), "
                    "new_full() or the like of a traced tensor make one that may be"
                )
            known = (tensor, tensor._version, self._tracer.constant(tensor))
            self._known[id(tensor)] = known
        return known[2]

    def follow(self, node: Node) -> None:
        """If ``node`` has changed such a tensor: each call changes a copy, and what reads it from now on is traced."""
        changed = set(_viewed(changed_argument(node)))
        for tensor, version, source in list(self._known.values()):
            if source not in changed or tensor._version == version:
                continue
            self._known[id(tensor)] = (tensor, tensor._version, self._copied(source))
            self.any_written = True
            for written in (tensor,) if tensor._base is None else (tensor, tensor._base):
                if type(written) is Tensor:
                    vars(written)["tracer"] = self._tracer
                    _set_class(written, WrittenTensor)
                    self._written.append(written)

    def close(self) -> None:
        """Let all be plain tensors again."""
        while self._written:
            written = self._written.pop()
            _set_class(written, Tensor)
            del vars(written)["tracer"]

    def _copied(self, source: Node) -> Node:
        if source.op != "get_attr":
            return source
        with source.graph.inserting_after(source):
            copied = source.graph.call_method("clone", (source,))
        copied.meta[VALUE] = source.meta.get(VALUE)
        for user in [user for user in source.users if user is not copied]:
            user.replace_input_with(source, copied)
        return copied


def _viewed(value: Any) -> Iterator[Node]:
    """Yield a node, and what it may be a view of."""
    while isinstance(value, Node):
        yield value
        value = value.args[0] if value.args else None


def _set_class(tensor: Any, kind: type[Tensor]) -> None:
    tensor.__class__ = kind
