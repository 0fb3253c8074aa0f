"""The ways to run a graph: with or without its roundings; whole, in parts, or side by side with another graph."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.fake_quantize.converted import DynamicFakeQuantize, StaticFakeQuantize
from fxquant.fake_quantize.qparams import to_integers
from fxquant.graph.inputs import bind
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.module import get_metadata
from fxquant.graph.query import function_name, module_of
from fxquant.nn.fake_quantize import FakeQuantizedWeight
from fxquant.nn.simulated_recurrent import FakeQuantizedMatrices
from fxquant.plan.quant_plan import QuantUnit

ROUNDINGS = (StaticFakeQuantize, DynamicFakeQuantize)
"""The modules that round values in a simulation."""


def first_tensor(value: Any) -> Any:
    """Return the tensor that an operator is measured by: of several, as of a recurrent layer, the first."""
    while isinstance(value, tuple) and value:
        value = value[0]
    return value


class WeightsOnly(BoundInterpreter):
    """Runs a simulation with rounded weights, and activations as they are."""

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.fetch_attr(target)
        if isinstance(module, FakeQuantizedMatrices):
            return module.weights_only(*args, **kwargs)
        return args[0] if isinstance(module, ROUNDINGS) else super().call_module(target, args, kwargs)


class FloatRun(WeightsOnly):
    """Runs a simulation without any of its roundings, which is the float model."""

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.fetch_attr(target)
        if isinstance(module, FakeQuantizedWeight):
            return module.unrounded(*args, **kwargs)
        return super().call_module(target, args, kwargs)


class PartlyRounded(FloatRun):
    """Runs a simulation with some of its roundings; elsewhere it is the float model.

    Args:
        gm: The simulation.
        bound: Its inputs by name.
        rounded: Paths of the modules that round as they do in the simulation: those of values, and layers with a
            weight.
    """

    def __init__(self, gm: GraphModule, bound: Mapping[str, Any], rounded: Collection[str]) -> None:
        super().__init__(gm, bound)
        self._rounded = rounded

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in self._rounded:
            return BoundInterpreter.call_module(self, target, args, kwargs)
        return super().call_module(target, args, kwargs)


def all_values(run: BoundInterpreter) -> dict[Node, Any]:
    """Run a whole graph without gradients, and return the value of every node.

    Args:
        run: Made with ``keep_values=True``.
    """
    with torch.no_grad():
        run.run()
    return run.env


def float_values(simulated: GraphModule, bound: Mapping[str, Any]) -> dict[str, Any]:
    """Compute every value of the float model, by the name of its node.

    Args:
        simulated: What ``convert(prepared, to="fake_quant")`` gave.
        bound: Its inputs by name.
    """
    values = all_values(FloatRun(simulated, bound, keep_values=True))
    return {node.name: value for node, value in values.items()}


def function_of(node: Node, args: Sequence[Any]) -> Callable[..., Any]:
    """Return what a node calls: a module, a function, or the method of the class of its first argument."""
    if node.op == "call_method":
        method: Callable[..., Any] = getattr(type(args[0]), function_name(node.target))
        return method
    module = module_of(node)  # one with a length of 0 is false
    function: Any = node.target if module is None else module
    return function


def run_nodes(
    nodes: Sequence[Node], values: Mapping[Node, Any], instead: Mapping[Node, Callable[..., Any]] | None = None
) -> Any:
    """Run a part of a graph.

    Args:
        nodes: In an order in which they can run.
        values: The values that they read of other nodes.
        instead: Node -> what is called in its place, with the same arguments.

    Returns:
        The value of the last node.
    """
    env, replaced = dict(values), instead or {}
    for node in nodes:
        args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
        function = replaced[node] if node in replaced else function_of(node, args)
        env[node] = function(*args, **kwargs)
    return env[nodes[-1]]


class OrderedNodes:
    """Nodes in an order in which they can run: an interpreter runs a part of them, and values that are dead are freed.

    Args:
        order: The nodes. Where it holds only some of a graph, nobody outside reads their values.
        seed: Of what is drawn at random: a node draws the same numbers in every run; None leaves the generators alone.
    """

    def __init__(self, order: Sequence[Node], seed: int | None = None) -> None:
        self.order, self._seed = order, seed
        on_cpu_alone = not torch.cuda.is_initialized() and not torch.backends.mps.is_available()
        self._set_seed = torch.default_generator.manual_seed if on_cpu_alone else torch.manual_seed  # 20 times faster
        place = {node: index for index, node in enumerate(order)}
        self._dead: list[list[Node]] = [[] for _ in order]
        """For each place, the nodes whose value nobody reads after it."""
        for node, own in place.items():
            self._dead[max([own, *(place[user] for user in node.users if user in place)])].append(node)

    def advance(self, run: BoundInterpreter, env: dict[Node, Any], start: int, stop: int) -> Any:
        """Run the nodes at some places of the order.

        Args:
            run: An interpreter of the graph.
            env: The values that are alive at ``start``; afterwards, those that are alive at ``stop``. An input that is
                in it is not asked of the interpreter.
            start, stop: The places, without ``stop``.

        Returns:
            The value of the last node that ran; None where none did.
        """
        run.env, value = env, None
        for place in range(start, stop):
            node = self.order[place]
            if self._seed is not None:
                self._set_seed(self._seed + place)
            value = env[node] if node in env and node.op == "placeholder" else run.run_node(node)
            env[node] = value
            for dead in self._dead[place]:
                env.pop(dead, None)
        return value


def order_by_units(gm: GraphModule, units: Sequence[QuantUnit]) -> tuple[list[Node], list[tuple[QuantUnit, range]]]:
    """Order the nodes of a graph as far as the last of some units, with the nodes of each unit side by side.

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


class Stepper(BoundInterpreter):
    """Runs the nodes that it is told to run, in the order of the graph. It seeds the random generators of torch."""

    def step(self, node: Node) -> Any:
        """Run one node, all of whose inputs have run. What it draws at random is the same in every run."""
        torch.manual_seed(zlib.crc32(node.name.encode()))
        self.env[node] = self.run_node(node)
        return self.env[node]

    def free_after(self, node: Node) -> None:
        """Free what nobody reads after a node."""
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
        """Return the value of a node."""
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


def as_taken(model: nn.Module, bound: Mapping[str, Any]) -> dict[str, Any]:
    """Quantize the floats of a batch where a model takes quantized values.

    Args:
        model: What ``convert`` gave.
        bound: Name of an argument -> value.
    """
    taken: Mapping[str, Any] = get_metadata(model, "integer_inputs") or {}

    def quantized(name: str, value: Any) -> Any:
        if name not in taken or not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        qparams = taken[name]
        scale, zero_point = (each.to(value.device) for each in (qparams.scale, qparams.zero_point))
        return to_integers(value, scale, zero_point, qparams.scheme)

    return {name: quantized(name, value) for name, value in bound.items()}


def call_as_taken(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Do what ``as_taken`` does with the positional and keyword inputs of a call."""
    if not get_metadata(model, "integer_inputs"):
        return args, dict(kwargs)
    taken = as_taken(model, bind(model, args, kwargs, "the inputs"))
    names = [name for name, _ in zip(taken, args, strict=False)]
    first = [taken[name] if isinstance(value, Tensor) else value for name, value in zip(names, args, strict=False)]
    return (*first, *args[len(first) :]), {name: taken.get(name, value) for name, value in kwargs.items()}
