"""Takes out what gives its input back in evaluation mode, so that the operators around it meet and can be fused."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, GraphModule, Node

from fxquant.graph.affine import BATCH_NORMS
from fxquant.graph.aliases import Roots, changed_values, roots_of
from fxquant.graph.edit import positions
from fxquant.graph.inputs import is_given
from fxquant.graph.query import (
    BY_REQUEST,
    INPLACE,
    NAMED,
    ONLY_IN_TRAINING,
    REASON,
    REGULARIZER,
    SAME_WHILE_TRAINING,
    canonical_type,
    flat_arguments,
    has_hooks,
    is_shape_query,
    module_of,
    value_of,
)
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.idle import record, take_out
from fxquant.passes.qconfig_rules import own_targets
from fxquant.patterns.matcher import PatternIndex, match
from fxquant.patterns.pattern import Match
from fxquant.patterns.shape import CASTS, DROPOUT_FUNCTIONS, NOTHING

_IDLE = PatternIndex(NOTHING)

_CONVERSIONS = ("to", "type_as", "cpu", *CASTS)
_COPIES = ("clone", torch.clone, "contiguous")
_ALWAYS = (*_COPIES, torch.positive, operator.pos)
"""Functions and methods that are no-ops while training, too."""

_IDLE_WITH_ONE = (torch.mul, torch.div)
"""Operators that give their first argument back, in new memory, where the second is the number 1."""

_LAYERS = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)

_BY_ELEMENT = frozenset(
    (
        *(torch.clamp, torch.sigmoid, torch.tanh),
        *(F.relu, F.relu6, F.hardtanh, F.hardsigmoid, F.hardswish, F.silu, F.mish, F.gelu, F.elu, F.leaky_relu),
    )
)
"""Functions that compute element by element: the same bits in any memory order."""


@graph_pass(after=("normalize", "functional_to_module", "decompose_attention"), keeps_values=True)
def drop_idle(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``bn(identity(conv(x)))`` becomes ``bn(conv(x))``: identities, dropouts in evaluation mode, clones, conversions.

    A copy stays where something is changed in place later, and where it is returned; what sees to a memory order stays,
    but after activations. So does what asks for a size, a dtype or a device, and reads no value. What training needs is
    noted in the plan, and stands there again in a model that trains.
    """
    idle, order = _idle_calls(gm, own_targets(ctx))
    recorded = _with_what_they_ask([node for node in idle if not _is_always_idle(node)])
    for node in [node for node in idle if node not in recorded]:
        take_out(node)
    calls = tuple(record(node, recorded) for node in recorded)
    for node in recorded:
        take_out(node)
    for node in reversed(order):
        _let_sink(node)
    if asked := [node for node in gm.graph.nodes if any(map(_asks_for_size_or_kind, node.users))]:
        memory = _Memory(gm.graph)
        for node in asked:
            _let_sizes_sink(node, memory)
    ctx.plan = replace(ctx.plan, idle=calls)
    return gm


def _idle_calls(gm: GraphModule, theirs: Collection[Any]) -> tuple[list[Node], list[Node]]:
    """Find the no-ops that can be taken out, and those that may only stand elsewhere."""
    memory = _Memory(gm.graph)
    idle = [node for node in gm.graph.nodes if _is_idle(node, theirs)]
    gone = [node for node in idle if _may_go(node, memory)]
    for node in gm.graph.nodes:
        if node.meta.get(INPLACE) and any(copy in gone and _copies(copy) for copy in memory.roots[node.args[0]]):
            del node.meta[INPLACE]  # what is written to is no longer a copy
    kept = [node for node in idle if node not in gone and _copies(node)]
    return gone, [node for node in kept if not memory.is_changed_after(node, cast(Node, node.args[0]))]


def _with_what_they_ask(idle: list[Node]) -> list[Node]:
    """Add the dtypes and devices that only these calls ask for, each before its reader; say all by position."""
    found: list[Node] = []
    for node in idle:
        if _named_last(node):
            node.args, node.kwargs = (*node.args, *node.kwargs.values()), {}
        asked = [each for each in node.all_input_nodes[1:] if each.target is getattr and set(each.users) <= set(idle)]
        found += [each for each in asked if each not in found] + [node]
    return found


def _is_idle(node: Node, theirs: Collection[Any]) -> bool:
    """Tell whether a call gives its first argument back; what a user's pattern names is nothing that may go."""
    if node.op not in ("call_module", "call_function", "call_method") or not _takes_one_value(node):
        return False
    if any(node.meta.get(key) for key in (REASON, BY_REQUEST, NAMED)):
        return False
    module = module_of(node)
    if module is not None and (has_hooks(module) or module.training or type(module) in theirs):
        return False
    if node.target in theirs or (module is not None and canonical_type(module) in theirs):
        return False
    if ONLY_IN_TRAINING in node.meta or _is_idle_by_value(node):
        return True
    for pattern in _IDLE.ending_in(node):
        found = match(pattern, node)
        if isinstance(found, Match) and (pattern.check is None or pattern.check(found.captures) is None):
            return True
    return False


def _is_idle_by_value(node: Node) -> bool:
    """``x[:]``, ``x * 1``, ``x / 1.0``, and pads of nothing; ``x + 0`` makes another zero of -0.0."""
    source, result = value_of(cast(Node, node.args[0])), value_of(node)
    if source is None or result is None or INPLACE in node.meta or node.op != "call_function":
        return False
    if source.dtype != result.dtype or not source.dtype.is_floating_point or len(node.args) < 2:
        return False
    argument = node.args[1]
    if node.target is operator.getitem:
        items = argument if isinstance(argument, tuple) else (argument,)
        return all(item is ... or item == slice(None) for item in items)
    if node.target is F.pad:
        return not any(argument) if isinstance(argument, (tuple, list)) else False
    return node.target in _IDLE_WITH_ONE and isinstance(argument, (int, float)) and argument == 1 and not node.kwargs


def _takes_one_value(node: Node) -> bool:
    """Tell whether all that a call computes with is its first argument; of another it may take dtype and device."""
    if not node.args or not isinstance(node.args[0], Node):
        return False
    if node.target in ("type_as", "to"):
        return _named_last(node) or not any(
            isinstance(value, Node) for value in (*_behind_nodes(node), *node.kwargs.values())
        )
    return node.all_input_nodes == [node.args[0]]


def _named_last(node: Node) -> bool:
    """``y.to(dtype=x.dtype)``, which ``y.to(x.dtype)`` says by position."""
    return node.target == "to" and len(node.args) == 1 and list(node.kwargs) in (["dtype"], ["device"])


def _behind_nodes(node: Node) -> list[Any]:
    """Return the arguments by position behind those that are nodes."""
    return list(itertools.dropwhile(lambda argument: isinstance(argument, Node), node.args))


class _Memory:
    """Knows which values of a graph share memory, what is changed in place, and what is returned."""

    def __init__(self, graph: Graph) -> None:
        self.roots: dict[Node, Roots] = {}
        for node in graph.nodes:
            self.roots[node] = roots_of(node, self.roots)
        self._order = positions(graph)
        self._changes = [
            (self._order[node], self.roots[value]) for node in graph.nodes for value in changed_values(node)
        ]
        self._returned = frozenset[Any]().union(*(self.roots[node] for node in graph.output_node().all_input_nodes))

    def is_changed_after(self, node: Node, source: Node) -> bool:
        """Tell whether a value, or the one that it is a copy of, is changed in place after it."""
        own = self.roots[node] | self.roots[source]
        return any(place > self._order[node] and memory & own for place, memory in self._changes)

    def is_anything_changed_between(self, first: Node, last: Node) -> bool:
        """Tell whether anything is changed in place after one node and before another."""
        return any(self._order[first] < place < self._order[last] for place, _ in self._changes)

    def is_returned(self, node: Node) -> bool:
        """Tell whether what the model returns may lie in the memory of ``node``."""
        return node in self._returned


def _may_go(node: Node, memory: _Memory) -> bool:
    """Tell whether nothing notices that a no-op is gone."""
    source: Any = node.args[0]
    if node.target in _CONVERSIONS and is_given(source):
        return False  # another batch may come in another dtype
    if len(node.all_input_nodes) > 1:  # so may the other, and what is computed of no weight stands where it was made
        between = _comes_from_layer(source) and _goes_to_layers(node)
        if not (between if node.target == "to" else not memory.is_returned(node)):
            return False
    if not _copies(node):
        return True
    info = value_of(source)
    if info is None or not info.contiguous or memory.is_returned(node) or memory.is_changed_after(node, source):
        return False
    return node.target not in ("contiguous", *_CONVERSIONS) and not node.kwargs


def _comes_from_layer(node: Node) -> bool:
    """Tell whether a value has dtype and device of a layer's weight: its result, or computed of it by element."""
    if isinstance(module_of(node), _LAYERS):
        return True
    return (_is_by_element(node) or node.target == "to") and _comes_from_layer(cast(Node, node.args[0]))


def _goes_to_layers(node: Node) -> bool:
    """Tell whether layers alone read a value, or what is computed of it: they refuse a dtype but their own."""
    readers = [user for user in node.users if not _asks_for_size_or_kind(user)]
    for user in readers:
        if isinstance(module_of(user), _LAYERS):
            continue
        if not (_is_by_element(user) or user.target == "to") or user.args[0] is not node or not _goes_to_layers(user):
            return False
    return bool(readers)


def _copies(node: Node) -> bool:
    """Tell whether a call may give new memory, or memory in another order."""
    if node.target in _CONVERSIONS:
        return any(argument is True or isinstance(argument, torch.memory_format) for argument in flat_arguments(node))
    return node.target in (*_COPIES, *_IDLE_WITH_ONE, F.pad)


def _let_sink(node: Node) -> None:
    """``relu(x.contiguous())`` becomes ``relu(x).contiguous()``: the same bits in the same order, and ReLU is fused.

    Past all that computes element by element of the one tensor. Of two that meet so one is left.
    """
    while len(node.users) == 1 and _is_by_element(reader := next(iter(node.users))):
        reader.meta.pop(INPLACE, None)
        source: Any = node.args[0]
        reader.replace_input_with(node, source)
        reader.replace_all_uses_with(node, propagate_meta=False)
        node.replace_input_with(source, reader)
        reader.append(node)
    same = [(user.target, user.args[1:], user.kwargs) == (node.target, (), node.kwargs) for user in node.users]
    if same == [True] and len(node.args) == 1:
        take_out(node)


def _let_sizes_sink(node: Node, memory: _Memory) -> None:
    """``y = conv(x); n = y.shape[0]; bn(y)`` becomes ``y = bn(conv(x)); n = y.shape[0]``: the norm is fused."""
    while (reader := _only_reader(node, memory)) is not None:
        asked = [user for user in node.users if user is not reader]
        node.append(reader)  # what asks may stand before it
        for user in asked:
            user.replace_input_with(node, reader)
        node = reader


def _only_reader(node: Node, memory: _Memory) -> Node | None:
    """Return what alone reads the values of a node, where a size that is asked for may be asked of its result."""
    readers = [user for user in node.users if not _asks_for_size_or_kind(user)]
    if len(readers) != 1 or len(node.users) == 1 or node.op == "placeholder":
        return None
    before, after = value_of(node), value_of(readers[0])
    if before is None or after is None or (before.shape, before.dtype) != (after.shape, after.dtype):
        return None
    if not _is_by_element(readers[0]) or INPLACE in readers[0].meta or memory.is_changed_after(node, node):
        return None
    if memory.is_anything_changed_between(node, readers[0]):
        return None  # the statistics of a norm, say
    return readers[0]


def _asks_for_size_or_kind(node: Node) -> bool:
    if node.target is getattr and node.args[1] in ("dtype", "is_cuda"):
        return True
    return node.target == "is_floating_point" or (is_shape_query(node) and node.target != "stride")


def _is_by_element(reader: Node) -> bool:
    """Tell whether a node computes element by element, of one tensor."""
    if len(reader.all_input_nodes) != 1 or reader.meta.get(REASON):
        return False
    module = module_of(reader)
    return reader.target in _BY_ELEMENT if module is None else isinstance(module, BATCH_NORMS) and not has_hooks(module)


def _is_always_idle(node: Node) -> bool:
    """Tell whether a call gives its input back while training as well, to the gradient and in autocast too."""
    module = module_of(node)
    if ONLY_IN_TRAINING in node.meta:
        return False
    if SAME_WHILE_TRAINING in node.meta and node.target in DROPOUT_FUNCTIONS:
        return True
    if module is not None:
        return canonical_type(module) is nn.Identity or getattr(module, "p", None) == 0
    if node.target in DROPOUT_FUNCTIONS:
        return REGULARIZER not in node.meta and node.args[1:2] == (0,)
    return node.target in _ALWAYS or _is_idle_by_value(node)
