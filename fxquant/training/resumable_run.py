"""Runs a graph over many batches, a part at a time, and keeps what the rest will read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxquant.errors import FxQuantError, within
from fxquant.graph.failures import does_not_run
from fxquant.graph.shapes import BoundInterpreter
from fxquant.measure.noise import ROUNDINGS
from fxquant.plan.quant_plan import QuantUnit
from fxquant.training.spill_store import Memory


class WeightsOnly(BoundInterpreter):
    """Runs a simulation with rounded weights, and activations as they are."""

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.fetch_attr(target)
        return args[0] if isinstance(module, ROUNDINGS) else super().call_module(target, args, kwargs)


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
        self._run, self._order, self._memory = run, order, memory
        self._dead = dead_after(order)
        self._reached = [0] * len(inputs)
        self._values = [
            {node: bound[str(node.target).lstrip("*")] for node in order if node.op == "placeholder"}
            for bound in inputs
        ]

    def advance(self, batch: int, stop: int) -> Any:
        """Run a batch up to the node at place ``stop`` of the order, exclusive; the value of the last node run."""
        value: Any = None
        if self._reached[batch] < stop:
            env = self._run.env = self._memory.read(self._values[batch])
            with torch.no_grad(), within(f"calibration batch {batch}"):
                for place in range(self._reached[batch], stop):
                    node = self._order[place]
                    value = env[node] if node.op == "placeholder" else self._value(node)
                    env[node] = value
                    for dead in self._dead[place]:
                        del env[dead]
            self._reached[batch] = stop
            self._values[batch] = self._memory.keep((id(self), batch), env)
            self._run.env = {}
        return value

    def values(self, batch: int) -> dict[Node, Any]:
        """What nodes further on will read."""
        return self._memory.read(self._values[batch])

    def _value(self, node: Node) -> Any:
        try:
            return self._run.run_node(node)
        except FxQuantError:
            raise
        except Exception as error:
            raise does_not_run(error, node, *self._run.fetch_args_kwargs_from_env(node)) from error


def order_by_units(gm: GraphModule, units: Sequence[QuantUnit]) -> tuple[list[Node], list[tuple[QuantUnit, range]]]:
    """The nodes of a graph as far as the last of some units, with the nodes of each unit side by side.

    Returns:
        The nodes in an order in which they can run, and the units in that order, each with its places in it.
    """
    nodes = {node.name: node for node in gm.graph.nodes}
    roots = {unit.root: unit for unit in units}
    inside = {name for unit in units for name in unit.nodes}
    order: list[Node] = []
    places: list[tuple[QuantUnit, range]] = []
    for node in gm.graph.nodes:
        if node.name in roots:
            members = [nodes[name] for name in roots[node.name].nodes]
            places.append((roots[node.name], range(len(order), len(order) + len(members))))
            order += members
        elif node.name not in inside:
            order.append(node)
    return order[: places[-1][1].stop if places else 0], places


def dead_after(order: Sequence[Node]) -> list[list[Node]]:
    """For each place, the nodes whose value nobody reads behind it."""
    place = {node: index for index, node in enumerate(order)}
    dead: list[list[Node]] = [[] for _ in order]
    for node, own in place.items():
        dead[max([own, *(place[user] for user in node.users if user in place)])].append(node)
    return dead
