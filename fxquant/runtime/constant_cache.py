"""Folds what is the same in each call with inputs of one shape: masks, indices, parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from fxquant.graph.query import values_read_by
from fxquant.runtime.execution_plan import TensorGuard, needs_gradient
from fxquant.runtime.modes import ForbidRandom, NotRecordableError

LARGEST_CACHED = 1 << 24
"""Bytes of a value that is folded. A larger one is computed in each call."""

_NUMBERS = frozenset(
    (
        *(NoneType, bool, int, float, complex, str, bytes, slice, range, type),
        *(torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo),
    )
)
"""Types of values that are the same in each call, where they follow from shapes."""

_PURE_SOURCES = ("torch", "_operator", "math", "builtins")
"""Modules whose functions give the same for the same arguments, or say that they draw."""


class ConstantCache:
    """Values that were computed of shapes and parameters alone, once for all calls.

    Whoever writes into such a value, or gets it as a result of the model, may change it. ``stay_constant`` is False
    where the graph lets that happen.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self.values: dict[Node, Any] = {}
        self.guards: list[TensorGuard] = []
        self._versions: dict[int, tuple[Tensor, int]] = {}
        """Memory -> a tensor of it, and how often that was written to."""
        self._read: set[int] = set()
        """Memory that other nodes have read so far: what is written later they would see too early."""
        self._parameters: set[int] = set()
        self._stay_constant = True

    def add_attribute(self, node: Node, owner: nn.Module, name: str, value: Any) -> bool:
        """Take a parameter or a buffer for constant, as long as nobody writes to it; False where nothing tells that."""
        if (
            not self._enabled
            or type(value) not in (Tensor, nn.Parameter)
            or needs_gradient(value)
            or not _is_plain(value)
        ):
            return False
        self.guards.append(TensorGuard(owner, name, value, value._version))
        self._parameters.add(_memory(value))
        self._keep(node, value)
        return True

    def attempt(self, node: Node, known: Callable[[Node], bool], call: Callable[[], Any]) -> bool:
        """Compute a node once for all calls.

        Args:
            node: Not run so far.
            known: Whether a node's value is a number that follows from shapes.
            call: Runs it.

        Returns:
            Whether it was computed; ``values`` has the result.
        """
        if (
            not self._enabled
            or not _is_pure(node)
            or not all(used in self.values or known(used) for used in values_read_by(node))
        ):
            return False
        try:
            with (
                torch.inference_mode(False),
                torch.no_grad(),
                ForbidRandom(),
            ):  # for tensors that count who writes to them
                value = call()
        except NotRecordableError:
            return False
        tensors = list(_tensors_of(value))
        if any(not _is_plain(x) for x in tensors) or any(self._is_large(x) for x in tensors):
            return False
        for used in values_read_by(node):
            for x in _tensors_of(self.values.get(used)):
                constant, version = self._versions[_memory(x)]
                if constant._version != version:
                    self._stay_constant = self._stay_constant and _memory(x) not in self._read
                    self._versions[_memory(x)] = constant, constant._version
        self._keep(node, value)
        return True

    def note_read(self, node: Node) -> None:
        """Note the constants that a node reads which runs in each call or in a program."""
        for used in node.all_input_nodes:
            self._read.update(_memory(x) for x in _tensors_of(self.values.get(used)))

    def stay_constant(self, result: Any) -> bool:
        """Tell whether no constant was changed since it was computed, and the graph's result is none of them."""
        given = {_memory(x) for x in _tensors_of(result) if x.layout is torch.strided} - self._parameters
        return (
            self._stay_constant
            and given.isdisjoint(self._versions)
            and all(x._version == version for x, version in self._versions.values())
        )

    def _keep(self, node: Node, value: Any) -> None:
        self.values[node] = value
        for x in _tensors_of(value):
            self._versions.setdefault(_memory(x), (x, x._version))

    def _is_large(self, x: Tensor) -> bool:
        return x.untyped_storage().nbytes() > LARGEST_CACHED and _memory(x) not in self._versions


def holds_tensors(value: Any) -> bool:
    """Tell whether a value is a tensor, or a container of some that torch knows."""
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))


def holds_numbers(value: Any) -> bool:
    """Tell whether a value is a number, a text, a dtype or the like, or a container of these.

    An object of another class, such as a dataclass, may hold tensors where nobody can see them.
    """
    return all(type(leaf) in _NUMBERS for leaf in pytree.tree_leaves(value))


def _is_pure(node: Node) -> bool:
    if "out" in node.kwargs:
        return False
    if node.op == "call_method":
        return True
    source = getattr(node.target, "__module__", None) or ""
    return node.op == "call_function" and source.partition(".")[0] in _PURE_SOURCES


def _is_plain(x: Tensor) -> bool:
    return x.is_cpu and x.layout is torch.strided and not x.is_inference()


def _tensors_of(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr() or id(x)
