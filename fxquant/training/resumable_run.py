"""Runs a graph over many batches, a part at a time, and keeps what the rest will read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from fxquant.errors import within
from fxquant.graph.shapes import BoundInterpreter
from fxquant.measure.runner import OrderedNodes
from fxquant.training.spill_store import Memory


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
            with torch.no_grad(), within(f"calibration batch {batch}"):
                value = self._nodes.advance(self._run, env, self._reached[batch], stop)
            self._reached[batch] = stop
            self._values[batch] = self._memory.keep((id(self), batch), env)
            self._run.env = {}
        return value

    def values(self, batch: int) -> dict[Node, Any]:
        """What nodes further on will read."""
        return self._memory.read(self._values[batch])
