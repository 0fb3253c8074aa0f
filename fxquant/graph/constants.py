"""Finds the values of a graph that no input changes: passes read them, and training computes them in each call.

``Constants`` computes such values once. ``Aside`` notes how a tensor is computed of parameters that train.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.nn.utils import parametrize

from fxquant.capture.trace_guards import GUARDS
from fxquant.graph.aliases import Roots, changed_argument, changed_values, roots_of
from fxquant.graph.edit import add_module
from fxquant.graph.query import COMPUTED_OF, attribute_at, module_of, reason_of


class NotConstantError(Exception):
    """A value may differ from call to call."""


class Constants:
    """Computes, once each, the values that come of parameters, buffers and numbers alone.

    A parameter or buffer that the graph changes in place is none, nor is what random numbers make, or modules other
    than those that compute weights.
    """

    def __init__(self, gm: GraphModule) -> None:
        self._gm = gm
        self._changed = _changed_attributes(gm)
        self._values: dict[Node, Any] = {}

    def value(self, argument: Any) -> Any:
        """Return the value of an argument of a node: a parameter itself where the node only reads it.

        Raises:
            NotConstantError: it may differ from call to call.
        """
        return map_arg(argument, self._value)

    def holds(self, node: Node) -> bool:
        """Tell whether a node gives the same value in every call, by computing it."""
        try:
            self._value(node)
        except NotConstantError:
            return False
        return True

    def _value(self, node: Node) -> Any:
        if node not in self._values:
            self._values[node] = self._compute(node)
        return self._values[node]

    def _compute(self, node: Node) -> Any:
        if reason_of(node) or changed_argument(node) is not None:
            raise NotConstantError
        if node.op == "get_attr":
            if node.target in self._changed:
                raise NotConstantError
            return attribute_at(self._gm, str(node.target))
        if node.op not in ("call_function", "call_method") and not computes_tensor(node):
            raise NotConstantError
        args, kwargs = self.value(node.args), self.value(node.kwargs)
        if node.op == "call_method":
            function: Any = getattr(args[0], str(node.target))
        else:
            function = module_of(node) if node.op == "call_module" else node.target
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            before = torch.random.get_rng_state()
            value = function(*(args[1:] if node.op == "call_method" else args), **kwargs)
            if not torch.equal(before, torch.random.get_rng_state()):
                raise NotConstantError
        return value


def _changed_attributes(gm: GraphModule) -> set[str]:
    """Return the parameters and buffers that some node may change in place."""
    changed: set[str] = set()
    roots: dict[Node, Roots] = {}
    for node in gm.graph.nodes:
        for value in changed_values(node):
            changed |= {root[1] for root in roots[value] if isinstance(root, tuple)}
        roots[node] = roots_of(node, roots)
    return changed


COMPUTATION = "_computation_of_"
"""Begins the name of a module that computes a parameter of the module that it lies in."""


class TensorComputation(nn.Module):
    """Computes a tensor of those that it is given, and holds none itself: a weight of another and a norm, say."""


def computes_tensor(node: Node) -> bool:
    """Tell whether a node calls a module that only computes a parameter of a layer: a parametrization, say."""
    return isinstance(module_of(node), (TensorComputation, parametrize.ParametrizationList))


def computed_parameter(node: Node) -> str:
    """Return the path of the parameter that such a module computes."""
    module = str(node.target).replace(".parametrizations.", ".").replace(COMPUTATION, "")
    return module.removeprefix("parametrizations.")


@dataclass(frozen=True, slots=True)
class ComputedLayer:
    """The nodes that compute the parameters and buffers of one layer."""

    tensors: Mapping[str, Node]
    """Parameter or buffer of the layer -> the node that computes it, in a graph of an ``Aside``."""
    home: str
    """Where the layer goes when they are values again, if nothing else is there; empty: where it is."""


@dataclass(frozen=True, slots=True)
class ComputedValue:
    """The module and the inputs that compute a tensor, whose value stands in a buffer."""

    computation: TensorComputation
    sources: tuple[Node, ...]
    """What it is given, in a graph of an ``Aside``."""


class Aside:
    """A graph beside that of the model, for copies of nodes that compute tensors of parameters alone."""

    def __init__(self) -> None:
        self.graph = Graph()
        self._copies: dict[Node, Node] = {}

    def copy(self, node: Node) -> Node:
        """Return the copy of a node, and of everything that it reads."""
        if node not in self._copies:
            self._copies[node] = self.graph.node_copy(node, self.copy)
        return self._copies[node]

    def view(self, node: Node, view: Callable[[Tensor], Tensor] | None) -> Node:
        """Return the copy of a node, as a function of one tensor makes another of it."""
        copied = self.copy(node)
        return copied if view is None else self.graph.call_function(view, (copied,))

    def item(self, node: Node, index: Any) -> Node:
        """Return a part of what a node of this graph gives."""
        return self.graph.call_function(operator.getitem, (node, index))

    def attribute(self, gm: GraphModule, path: str, name: str) -> Node:
        """Return a parameter of the module at ``path``, or what a parametrization computes in place of it."""
        module = gm.get_submodule(path)
        if parametrize.is_parametrized(module, name):
            return self.graph.call_module(f"{path}.parametrizations.{name}")
        return self.graph.get_attr(f"{path}.{name}")


def attributes_read(node: Node) -> set[str]:
    """Return the paths of the parameters and buffers that a node is computed of."""
    found: set[str] = {str(node.target)} if node.op == "get_attr" else set()
    return found.union(*map(attributes_read, node.all_input_nodes))


class PutBack:
    """Copies nodes from beside into the graph of a model: once each, after its inputs."""

    def __init__(self, gm: GraphModule) -> None:
        self._gm = gm
        self._place = _behind_inputs(gm.graph)
        self._copies: dict[Node, Node] = {}
        self.replaced: set[str] = set()
        """The paths of buffers that nothing reads any more."""

    def node(self, node: Node) -> Node:
        """Return the node of the model that computes what one beside does."""
        if node not in self._copies:
            found = node.meta.get(COMPUTED_OF)
            self._copies[node] = self.value(node, found) if isinstance(found, ComputedValue) else self._copy(node)
        return self._copies[node]

    def value(self, stand_in: Node, computed: ComputedValue) -> Node:
        """Return the node that computes what a buffer holds the value of."""
        self.replaced.add(str(stand_in.target))
        sources = tuple(self.node(source) for source in computed.sources)
        path = add_module(self._gm, f"{stand_in.name}_computation", computed.computation)
        with self._gm.graph.inserting_before(self._place):
            made = self._gm.graph.call_module(path, sources)
        made.meta = {key: value for key, value in stand_in.meta.items() if key != COMPUTED_OF}
        return made

    def _copy(self, node: Node) -> Node:
        for source in node.all_input_nodes:
            self.node(source)
        with self._gm.graph.inserting_before(self._place):
            return self._gm.graph.node_copy(node, self.node)


def _behind_inputs(graph: Graph) -> Any:
    return next(node for node in graph.nodes if node.op != "placeholder" and node.target not in GUARDS)
