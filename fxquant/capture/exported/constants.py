"""What a program computes of numbers alone: masks, tables of indices, constants. It is computed once, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.graph.query import attribute_at, flat_arguments

_SHAPED = frozenset(f"new_{kind}" for kind in ("zeros", "ones", "full"))
"""Operators that read nothing of a tensor but its dtype and its device."""


Snapshots = dict[tuple[Node, Node], Tensor]
"""(reader, constant) -> the constant's value when it is read."""


def constant_values(gm: GraphModule, program: GraphModule, parts: Collection[Node] = ()) -> tuple[set[Node], Snapshots]:
    """Return the nodes that are the same in every call, and their values where other nodes read them.

    What is written in place later does not show in them. Parameters and buffers are no constants, nor is what random
    numbers make, or what anything else is written into.

    Args:
        gm: What is read.
        program: The program's module, which tells its buffers from the tensors that torch.export found in the code.
        parts: Nodes that a layer will stand for: what they read has a value even where they are constants themselves.
    """
    nodes = [node for node in gm.graph.nodes if node.op in ("call_function", "get_attr")]
    constants = _constants(program, nodes)
    if not constants:
        return constants, {}
    values: dict[Node, Any] = {}
    snapshots: Snapshots = {}
    taken: dict[tuple[Node, int], Tensor] = {}
    with torch.no_grad():
        for node in gm.graph.nodes:
            for source in () if node in constants and node not in parts else node.all_input_nodes:
                value = values.get(source)
                if isinstance(value, Tensor):
                    version = source, value._version
                    if version not in taken:
                        taken[version] = value.detach().clone(memory_format=torch.preserve_format)
                    snapshots[node, source] = taken[version]
            if node in constants:
                values[node] = _compute(gm, node, values)
    return constants, snapshots


def _constants(program: GraphModule, nodes: list[Node]) -> set[Node]:
    """Return the nodes that are the same in every call, without those that something else is written into."""
    refused: set[Node] = set()
    while True:
        constants: set[Node] = set()
        memory: dict[Node, frozenset[Node]] = {}
        for node in nodes:
            if node not in refused and _is_constant(program, node, constants):
                constants.add(node)
                shared = (memory[source] for source in node.all_input_nodes if source in memory)
                memory[node] = frozenset((node,)).union(*shared)
        wrong = {
            other
            for node in nodes
            if node not in constants
            for source in _written(node)
            if source in constants
            for other in constants
            if memory[other] & memory[source]
        }
        if not wrong:
            return constants
        refused |= wrong


def _written(node: Node) -> Iterator[Node]:
    """Yield the nodes whose values a node may change."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
        written = [
            argument for argument in target._schema.arguments if argument.alias_info and argument.alias_info.is_write
        ]
        names = {argument.name for argument in written}
        places = [argument.name for argument in target._schema.arguments]
        for name, value in (*zip(places, node.args, strict=False), *node.kwargs.items()):
            if name in names and isinstance(value, Node):
                yield value
    elif isinstance(target, torch._ops.HigherOrderOperator):
        yield from node.all_input_nodes


def _is_constant(program: GraphModule, node: Node, constants: set[Node]) -> bool:
    if node.op == "get_attr":
        value = attribute_at(program, str(node.target))
        return isinstance(value, Tensor) and not _is_state(program, str(node.target))
    target: Any = node.target
    sources = [argument for argument in flat_arguments(node) if isinstance(argument, Node)]
    if not isinstance(target, torch._ops.OpOverload):
        return (
            bool(sources) and getattr(target, "__module__", "") == "_operator" and all(s in constants for s in sources)
        )
    if torch.Tag.nondeterministic_seeded in target.tags or target.namespace != "aten":
        return False
    if target._schema.name.partition("::")[2] in _SHAPED and sources:
        return sources == [node.args[0]] and _dtype_of(node) is not None
    if not sources:
        return any("Tensor" in str(result.type) for result in target._schema.returns)
    return all(source in constants for source in sources)


def _is_state(program: GraphModule, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    module = program.get_submodule(parent)
    return name in module._parameters or name in module._buffers


def _dtype_of(node: Node) -> Any:
    value = node.meta.get("val")
    return (value.dtype, value.device) if isinstance(value, Tensor) else None


def _compute(gm: GraphModule, node: Node, values: dict[Node, Any]) -> Any:
    if node.op == "get_attr":
        return attribute_at(gm, str(node.target)).detach().clone()
    target: Any = node.target
    first = node.args[0] if node.args else None
    if isinstance(first, Node) and first not in values:  # one of _SHAPED
        dtype, device = _dtype_of(node)
        like = torch.empty((), dtype=dtype, device=device)
        return target(like, *node.args[1:], **node.kwargs)
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: values[source])
    return target(*args, **kwargs)
