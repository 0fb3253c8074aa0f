"""Runs graphs a node at a time, side by side, and frees each value after its last use."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxquant.errors import FxQuantError
from fxquant.graph.failures import does_not_run
from fxquant.graph.shapes import BoundInterpreter


class Stepper(BoundInterpreter):
    """Runs the nodes that it is told to run, in the order of the graph. It seeds the random generators of torch.

    Args:
        gm: The graph.
        bound: Its inputs, by name.
    """

    def __init__(self, gm: GraphModule, bound: Mapping[str, Any]) -> None:
        super().__init__(gm, bound)

    def step(self, node: Node) -> Any:
        """Run one node, all of whose inputs have run. What it draws at random is the same in every run."""
        torch.manual_seed(zlib.crc32(node.name.encode()))
        try:
            value = self.run_node(node)
        except FxQuantError:
            raise
        except Exception as error:
            raise does_not_run(error, node, *self.fetch_args_kwargs_from_env(node)) from error
        self.env[node] = value
        return value

    def free_after(self, node: Node) -> None:
        """Free what nobody reads behind a node."""
        for dead in self.user_to_last_uses.get(node, ()):
            self.env.pop(dead, None)


class ValuesOnDemand:
    """Runs a graph as far as it is asked for values, and keeps each as long as it will be asked for.

    Args:
        gm: The graph.
        bound: Its inputs, by name.
        demand: Node -> how often its value will be taken.
    """

    def __init__(self, gm: GraphModule, bound: Mapping[str, Any], demand: Mapping[Node, int]) -> None:
        self._run = Stepper(gm, bound)
        self._demand = Counter(demand)
        self._ahead = iter(gm.graph.nodes)
        self._passed: set[Node] = set()
        """Nodes that no node of the graph reads any more."""

    def look(self, node: Node) -> Any:
        """The value of a node."""
        while node not in self._run.env:
            following = next(self._ahead)
            self._run.step(following)
            for dead in self._run.user_to_last_uses.get(following, ()):
                self._passed.add(dead)
                self._free(dead)
        return self._run.env[node]

    def done_with(self, node: Node) -> None:
        """To be called as often as the demand said."""
        self._demand[node] -= 1
        if node in self._passed:
            self._free(node)

    def _free(self, node: Node) -> None:
        if self._demand[node] <= 0:
            self._run.env.pop(node, None)
