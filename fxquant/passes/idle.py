"""Calls that evaluation mode does without: noted, taken out, and put back for training. Shared by passes."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.graph.edit import add_module, rename, retarget
from fxquant.graph.query import (
    CALLED,
    ONLY_IN_TRAINING,
    REGULARIZER,
    SAME_WHILE_TRAINING,
    VALUE,
    nodes_by_name,
    nodes_in,
    qualified_name,
)
from fxquant.nn.training import Regularizer
from fxquant.patterns.shape import DROPOUT_FUNCTIONS
from fxquant.plan.quant_plan import IdleCall

_RESTORED = (VALUE, CALLED, REGULARIZER, ONLY_IN_TRAINING, "stack_trace")
"""What is kept of the metadata of a node."""


def take_out(node: Node) -> None:
    """Let its readers read the first argument of a call in place of the call, and erase it."""
    source: Any = node.args[0]
    node.replace_all_uses_with(source, propagate_meta=False)
    node.graph.erase_node(node)


def record(node: Node, recorded: Collection[Node]) -> IdleCall:
    """Note what ``restore_idle`` needs; ``recorded`` are all that will be restored, in the order of the graph."""
    behind = node.next
    while behind in recorded:
        behind = behind.next
    inputs = [argument for argument in node.args if isinstance(argument, Node)]
    meta = {key: node.meta[key] for key in _RESTORED if key in node.meta}
    meta.setdefault(CALLED, (qualified_name(node), None))  # whose mode it has
    return IdleCall(
        name=node.name,
        inputs=tuple(argument.name for argument in inputs),
        readers=tuple((user.name, _places(user, node)) for user in node.users),
        before=behind.name,
        op=node.op,
        target=node.target,
        arguments=(node.args[len(inputs) :], dict(node.kwargs)),
        meta=meta,
    )


def _places(reader: Node, node: Node) -> tuple[int, ...]:
    return tuple(place for place, taken in enumerate(nodes_in((reader.args, reader.kwargs))) if taken is node)


def restore_idle(gm: GraphModule, calls: Iterable[IdleCall]) -> None:
    """Put calls that were taken out back where they stood, under their names."""
    nodes = nodes_by_name(gm)
    for call in calls:
        args, kwargs = call.arguments
        inputs = [nodes[name] for name in call.inputs]
        before, last = nodes[call.before], max(inputs)
        # What it reads may have been moved behind what it stood before.
        with gm.graph.inserting_before(before) if last < before else gm.graph.inserting_after(last):
            node = gm.graph.create_node(call.op, call.target, (*inputs, *args), kwargs, call.name)
        rename(node, call.name)
        node.meta = dict(call.meta)
        nodes[call.name] = node
        for name, places in call.readers:
            if name in nodes and node < nodes[name]:  # else it is one of the next calls
                _read_at(nodes[name], places, node)


def _read_at(reader: Node, places: Collection[int], new: Node) -> None:
    """Let ``reader`` take ``new`` at these places among the nodes that it takes."""
    count = itertools.count()
    args, kwargs = map_arg((reader.args, reader.kwargs), lambda node: new if next(count) in places else node)
    reader.args, reader.kwargs = args, kwargs


def drop_restored(gm: GraphModule, calls: Iterable[IdleCall]) -> None:
    """Take out what ``restore_idle`` put back."""
    names = {call.name for call in calls}
    for node in list(gm.graph.nodes):
        if node.name in names:
            take_out(node)


def follow_training_mode(gm: GraphModule, node: Node) -> None:
    """A dropout that is a no-op in evaluation mode drops values while training."""
    found: tuple[Any, Mapping[str, Any]] | None = node.meta.get(REGULARIZER)
    known = node.target in DROPOUT_FUNCTIONS or ONLY_IN_TRAINING in node.meta
    if node.op != "call_function" or not known or SAME_WHILE_TRAINING in node.meta:
        return
    target: Any = node.target
    given = inspect.signature(target).bind(*node.args, **node.kwargs).arguments
    if given.get("training", True) is not False:
        return
    (_, first), *others = given.items()
    function, arguments = found or (target, {name: value for name, value in others if name != "training"})
    home = add_module(gm, f"{node.name}_regularizer", Regularizer(function, arguments))
    node.meta[CALLED] = qualified_name(node), None  # whose mode it has
    retarget(node, "call_module", home, (first,))
