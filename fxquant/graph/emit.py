"""Writes new nodes in front of another one, in the canonical spelling, each with what is known of its value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from fxquant.graph.edit import retarget
from fxquant.graph.operators.spelling import canonical_call
from fxquant.graph.query import VALUE, TensorInfo, info_of, tensors_of

_INHERITED = ("stack_trace", "nn_module_stack")


@dataclass(frozen=True, slots=True)
class Emitter:
    """Makes nodes that stand for (a part of) what ``place`` computes: at its place, from the same line of the user's.

    Nothing is run: values are inferred from those of the arguments, on the meta device.
    """

    gm: GraphModule
    place: Node
    meta: dict[str, Any] = field(default_factory=dict)
    """What every new node gets beside that."""

    def function(self, target: Any, *args: Any, value: Any = None, **kwargs: Any) -> Node:
        """Call a function; ``value`` is what is known of the result, where it cannot be inferred."""
        return self._create("call_function", target, args, kwargs, value)

    def method(self, target: str, *args: Any, value: Any = None, **kwargs: Any) -> Node:
        """Call a tensor method."""
        return self._create("call_method", target, args, kwargs, value)

    def module(self, path: str, *args: Any, value: Any, meta: dict[str, Any] | None = None) -> Node:
        """Call a module of the graph."""
        node = self._create("call_module", path, args, {}, value)
        node.meta.update(meta or {})
        return node

    def _create(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Node:
        with self.gm.graph.inserting_before(self.place):
            node = self.gm.graph.create_node(op, target, args, kwargs)
        node.meta = {key: self.place.meta[key] for key in _INHERITED if key in self.place.meta}
        node.meta |= self.meta
        node.meta[VALUE] = _inferred(node) if value is None else value
        if op != "call_module" and (call := canonical_call(node)) is not None:
            retarget(node, "call_function", call.target, call.args, call.kwargs)
        return node


def _inferred(node: Node) -> Any:
    """What the node's value is, were it run on values like those of its arguments."""
    devices = [info.device for argument in node.all_input_nodes for info in tensors_of(argument)]
    args = map_arg(node.args, _stand_in)
    kwargs = map_arg(node.kwargs, _stand_in)
    call: Any = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
    return pytree.tree_map_only(
        TensorInfo, lambda info: replace(info, device=devices[0]), info_of(call(*args, **kwargs))
    )


def _stand_in(node: Node) -> Any:
    return pytree.tree_map(partial(_tensor_like, node), node.meta[VALUE])


def _tensor_like(node: Node, info: Any) -> Tensor:
    if not isinstance(info, TensorInfo):
        raise TypeError(f"the value of {node.name} is no tensor: say what the result is")
    if info.contiguous:
        return torch.empty(info.shape, dtype=info.dtype, device="meta")
    spread: Tensor = torch.empty((*info.shape, 2), dtype=info.dtype, device="meta")
    return spread[..., 0]
