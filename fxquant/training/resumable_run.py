"""Runs a graph over many batches, a part at a time, and keeps what the rest will read: within a bound of memory, and
above it in files."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from fxquant.errors import InputError, error_context, writing
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.measure.runner import OrderedNodes


class ResumableRun:
    """All batches on their way through a graph.

    Args:
        run: The way to run a node: an interpreter of the graph.
        order: The nodes to run.
        inputs: Of each batch, by name.
        memory: Where values lie between two calls of ``advance``.
    """

    def __init__(
        self, run: BoundInterpreter, order: Sequence[Node], inputs: Sequence[Mapping[str, Any]], memory: Memory
    ) -> None:
        self._run, self._memory, self._nodes = run, memory, OrderedNodes(order)
        self._reached = [0] * len(inputs)
        self._values = [
            {node: bound[str(node.target).lstrip("*")] for node in order if node.op == "placeholder"}
            for bound in inputs
        ]

    def advance(self, batch: int, stop: int) -> Any:
        """Run a batch up to the node at place ``stop`` of the order, exclusive; the value of the last node run."""
        value: Any = None
        if self._reached[batch] < stop:
            env = self._memory.read(self._values[batch])
            with torch.no_grad(), error_context(f"calibration batch {batch}"):
                value = self._nodes.advance(self._run, env, self._reached[batch], stop)
            self._reached[batch] = stop
            self._values[batch] = self._memory.keep((id(self), batch), env)
            self._run.env = {}
        return value

    def values(self, batch: int) -> dict[Node, Any]:
        """Return the values that nodes further on will read."""
        return self._memory.read(self._values[batch])


SMALLEST_FILE = 1 << 12
"""Bytes. A tensor that is smaller stays in memory: a page of a file would hold it no better."""

HINT = "the variable TMPDIR names another folder; a larger memory= puts less into files"


@dataclass(frozen=True, slots=True)
class Spilled:
    """A tensor in a file."""

    values: Tensor
    device: torch.device
    """Where it was, and where it is read to."""

    def read(self) -> Tensor:
        return self.values.to(self.device)


class Memory:
    """Counts what its owners hold, and puts what does not fit into temporary files, for the length of a ``with``.

    Args:
        limit: In bytes.

    Raises:
        InputError: it is no such number.
    """

    def __init__(self, limit: int) -> None:
        if not isinstance(limit, int) or limit < 0:
            raise InputError("memory is no number of bytes", got=repr(limit), expected="a whole number, 0 or more")
        self._limit = limit
        self._held: dict[Hashable, int] = {}
        self._folder: TemporaryDirectory[str] | None = None
        self._files = 0

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *error: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def keep(self, owner: Hashable, values: dict[Any, Any]) -> dict[Any, Any]:
        """Return what ``owner`` shall hold in place of ``values`` and of what it held; ``read`` gives them back."""
        tensors = {id(leaf): leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)}
        size = sum(map(_bytes, tensors.values()))
        if self._fits(owner, size):
            self._held[owner] = size
            return values
        moved = {key: self._spill(tensor) for key, tensor in tensors.items()}
        self._held[owner] = sum(_bytes(each) for each in moved.values() if isinstance(each, Tensor))
        return pytree.tree_map_only(Tensor, lambda tensor: moved[id(tensor)], values)

    @staticmethod
    def read(values: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the values that ``keep`` was given, each tensor that was one object as one object."""
        read: dict[int, Tensor] = {}
        return pytree.tree_map_only(Spilled, lambda each: read.setdefault(id(each), each.read()), dict(values))

    def empty(self, owner: Hashable, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor on the CPU to be written to; ``owner`` then holds it, beside what it held before."""
        size, before = math.prod(shape) * dtype.itemsize, self._held.get(owner, 0)
        if size < SMALLEST_FILE or self._fits(owner, before + size):
            self._held[owner] = before + size
            return torch.empty(tuple(shape), dtype=dtype)
        return self._in_file(math.prod(shape), dtype).view(tuple(shape))

    def free(self, owner: Hashable) -> None:
        """``owner`` holds nothing any more."""
        self._held.pop(owner, None)

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return sum(self._held.values())

    @property
    def files(self) -> int:
        """Count the tensors that were put into files until now."""
        return self._files

    def _fits(self, owner: Hashable, size: int) -> bool:
        return self.held - self._held.get(owner, 0) + size <= self._limit

    def _spill(self, tensor: Tensor) -> Tensor | Spilled:
        if _bytes(tensor) < SMALLEST_FILE or tensor.layout is not torch.strided:
            return tensor
        strides = torch.empty_like(tensor, device="meta").stride()  # the same order of dimensions, without holes
        stored = self._in_file(tensor.numel(), tensor.dtype).as_strided(tensor.shape, strides)
        stored.copy_(tensor)
        return Spilled(stored, tensor.device)

    def _in_file(self, numel: int, dtype: torch.dtype) -> Tensor:
        with writing("a temporary file", gettempdir(), hint=HINT):
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="fxquant-", ignore_cleanup_errors=True)
            path = Path(self._folder.name) / str(self._files)
            self._files += 1
            try:
                tensor = torch.from_file(str(path), shared=True, size=numel, dtype=dtype)
            except RuntimeError as error:  # what torch makes of a full disk
                raise OSError(str(error).splitlines()[0]) from error
        with contextlib.suppress(OSError):  # some systems keep a file that is in use until the folder goes
            os.unlink(path)
        return tensor


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
