"""Which values of a graph are the same in every call, and what they are."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.graph.aliases import Roots, changed_argument, roots_of
from fxquant.graph.computed import computes_tensor
from fxquant.graph.query import module_of, reason_of


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
        """The value of an argument of a node: a parameter itself where the node only reads it.

        Raises:
            NotConstantError: it may differ from call to call.
        """
        return map_arg(argument, self._value)

    def holds(self, node: Node) -> bool:
        """Whether the value of a node is the same in every call."""
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
            return _attribute(self._gm, str(node.target))
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
    """The parameters and buffers that some node may change in place."""
    changed: set[str] = set()
    roots: dict[Node, Roots] = {}
    for node in gm.graph.nodes:
        argument = changed_argument(node)
        if isinstance(argument, Node):
            changed |= {root[1] for root in roots[argument] if isinstance(root, tuple)}
        roots[node] = roots_of(node, roots)
    return changed


def _attribute(gm: GraphModule, path: str) -> Any:
    parent, _, name = path.rpartition(".")
    return getattr(gm.get_submodule(parent), name)
