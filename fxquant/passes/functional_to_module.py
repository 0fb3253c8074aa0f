"""Makes layers of functions that take constant weights, and norms of products and sums with constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from fxquant.graph.affine import Affine, ChannelAffine, affines, per_channel, tensors_of_affine
from fxquant.graph.constants import (
    Aside,
    ComputedLayer,
    Constants,
    NotConstantError,
    attributes_read,
    computed_parameter,
    computes_tensor,
)
from fxquant.graph.edit import add_module, erase_unread, retarget, vacate
from fxquant.graph.layers import LAYERS
from fxquant.graph.operators.spelling import operator_of
from fxquant.graph.query import (
    CALLED,
    COMPUTED_OF,
    INPLACE,
    KEEPS_STATISTICS,
    ORIGINAL_FUNCTION,
    SAME_WHILE_TRAINING,
    WEIGHT,
    qualified_name,
    reason_of,
    value_of,
)
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.qconfig_rules import own_targets, rules_of_calls


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that is to become one of a layer."""

    node: Node
    key: tuple[Any, ...]
    """Calls of equal keys call the same layer."""
    layer: nn.Module
    sources: tuple[Any, ...]
    """What the call read its tensors from."""
    inputs: tuple[Any, ...]
    """What the layer is called with."""
    origin: str
    """Where the first of them lies, or the one parameter that it is made of; empty if there are several."""
    computed: Mapping[str, Node]
    """While training: parameter of the layer -> the node aside that computes it."""

    @property
    def home(self) -> str:
        """Say where the layer goes: where the first tensor stood, or, if it is named alike, where its layer stood."""
        parent, _, name = self.origin.rpartition(".")
        return parent if parent and (name in self.layer._parameters or name in self.layer._buffers) else self.origin

    @property
    def keeps_names(self) -> bool:
        """Tell whether all tensors of the layer have, at its home, the names that they have now."""
        return all(node.op == "get_attr" and node.target == f"{self.home}.{n}" for n, node in self.computed.items())


@graph_pass(after=("normalize", "decompose_composites"), keeps_values=True)
def functional_to_module(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``F.conv2d(x, self.weight)`` becomes the layer that holds the weight; calls that share all tensors share it.

    The weight may be a parameter or buffer of any module, or computed of such alone (``self.weight * self.scale``).
    The layer stands where the weight stood: that of ``block.conv.weight`` at ``block.conv``, that of ``block.kernel``
    at ``block.kernel`` (so it is ``block.kernel.weight`` in a state dict), unless something else reads from there;
    then it is named as the node. Functions that a user's own pattern names stay what they are.

    For training, a layer takes over its parameters only if they keep their names. Else they stay where they are, the
    layer holds their values while the plan is made, and its calls say how these are computed.
    """
    calls = list(_calls(gm, own_targets(ctx), Aside() if ctx.trains else None))
    for call in calls:  # all before the first layer is placed: where nothing reads any more, there is room
        call.node.args = call.inputs
    read = _attributes(gm)
    erase_unread(gm.graph, (source for call in calls for source in call.sources if isinstance(source, Node)))
    paths: dict[tuple[Any, ...], str] = {}
    left = set(gm.graph.nodes)  # a product of two parameters was part of a weight
    for call in (call for call in calls if call.node in left):
        call.node.meta |= {CALLED: (qualified_name(call.node), None), ORIGINAL_FUNCTION: call.node.target}
        if isinstance(weight := call.sources[0], Node) and weight.op == "get_attr":
            call.node.meta[WEIGHT] = str(weight.target)
        if call.key not in paths:
            paths[call.key] = _place_trained(gm, call, calls) if ctx.trains else _place(gm, call)
        retarget(call.node, "call_module", paths[call.key], call.node.args)
        if ctx.trains and paths[call.key] != call.home:
            call.node.meta[COMPUTED_OF] = ComputedLayer(call.computed, call.home)
    for path in read - _attributes(gm) if not ctx.trains else ():
        vacate(gm, path)
    return gm


def _attributes(gm: GraphModule) -> set[str]:
    return {str(node.target) for node in gm.graph.nodes if node.op == "get_attr"}


def _calls(gm: GraphModule, theirs: set[Any], aside: Aside | None) -> Iterator[_Call]:
    constants = Constants(gm)
    layers: dict[tuple[Any, ...], nn.Module | None] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in LAYERS or node.target in theirs or reason_of(node):
            continue
        # Sort the arguments: the input, tensors, and numbers.
        row, known = LAYERS[node.target], operator_of(node.target)
        if known is None or node.kwargs or len(node.args) != len(known.parameters):
            continue  # spelled in a way that normalize does not read
        given = dict(zip(known.parameters, node.args, strict=True))
        x = given.pop(known.parameters[0])
        sources = {name: given.pop(name) for name in row.tensors}
        inputs = _without_absent((x, *(given.pop(name) for name in row.inputs)))
        info = value_of(x) if isinstance(x, Node) else None
        if info is None or any(isinstance(value, Node) for value in given.values()):
            continue
        # Make one layer for equal calls.
        keeps = aside is not None and node.target is F.batch_norm and SAME_WHILE_TRAINING in node.meta
        key = (node.target, len(info.shape), repr(given), keeps, *map(_identity, sources.values()))
        if key not in layers:
            try:
                layers[key] = row.build(constants.value(sources), given, len(info.shape))
            except NotConstantError:
                layers[key] = None
            if keeps and (made := layers[key]) is not None:
                vars(made)[KEEPS_STATISTICS] = True
        if (layer := layers[key]) is not None:
            own = row.sources(sources).items() if aside is not None else ()
            computed = {name: aside.view(one, view) for name, (one, view) in own if aside and isinstance(one, Node)}
            first = next(iter(sources.values()))
            yield _Call(node, key, layer, tuple(sources.values()), inputs, _origin(first), computed)


def _without_absent(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs without those at the end that the call left out."""
    return inputs if inputs[-1] is not None else _without_absent(inputs[:-1])


def _identity(source: Any) -> Any:
    """Two calls read the same tensor if they read the same attribute, or the value of the same node."""
    return source.target if isinstance(source, Node) and source.op == "get_attr" else source


def _origin(source: Node) -> str:
    """Find the parameter that a weight is made of, if nothing else is: of ``self.weight.t()`` it is ``self.weight``."""
    origin = source
    while len(origin.all_input_nodes) == 1 and not computes_tensor(origin):
        origin = origin.all_input_nodes[0]
    if computes_tensor(origin):
        return computed_parameter(origin)
    return str(origin.target) if origin.op == "get_attr" else ""


def _place(gm: GraphModule, call: _Call) -> str:
    if call.origin and vacate(gm, call.home):
        gm.add_submodule(call.home, call.layer)
        return call.home
    return add_module(gm, call.node.name, call.layer)


def _place_trained(gm: GraphModule, call: _Call, calls: list[_Call]) -> str:
    if call.origin and call.keeps_names and not _is_read_by_others(call, calls):
        return _place(gm, call)
    return add_module(gm, call.node.name, call.layer)


def _is_read_by_others(call: _Call, calls: list[_Call]) -> bool:
    """Tell whether a parameter that is none of this layer's lies at its home, and another layer is computed of it."""
    own = {str(node.target) for node in call.computed.values()}
    read = {path for other in calls for node in other.computed.values() for path in attributes_read(node)}
    return any(path.startswith(f"{call.home}.") for path in read - own)


@graph_pass(after=("normalize", "decompose_composites", "functional_to_module"), keeps_values=True)
def affine_to_norm(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """``conv(x) * self.scale + self.shift`` becomes a ``ChannelAffine`` behind the convolution, named as the sum.

    So does ``FrozenBatchNorm2d`` of torchvision and others: what it computes of its buffers is constant. For training,
    parameters and buffers stay where they are, and what is computed of them is computed in each call.
    """
    found = list(affines(gm, own_targets(ctx)))
    if not found:
        return gm
    rules, constants, aside = rules_of_calls(gm, ctx.config), Constants(gm), Aside()
    read = _attributes(gm)
    # Replace each chain of sums and products by one layer.
    for each in found:
        if any(rules[step.node].qconfig is None for step in each.steps):
            continue
        tensors = tensors_of_affine(each, constants)
        if tensors is None:
            continue
        node = each.root
        node.meta |= {CALLED: (qualified_name(node), None), ORIGINAL_FUNCTION: node.target}
        node.meta.pop(INPLACE, None)
        target = add_module(gm, node.name, ChannelAffine(tensors, each.behind, each.rank).eval())
        if ctx.trains:
            node.meta[COMPUTED_OF] = ComputedLayer(_computed(each, aside), "")
        retarget(node, "call_module", target, (each.x,))
        steps = [step.node for step in each.steps[:-1]]
        erase_unread(gm.graph, (*reversed(steps), *(step.constant for step in each.steps)))
    # Drop the attributes that nothing reads any more.
    for path in read - _attributes(gm) if not ctx.trains else ():
        vacate(gm, path)
    return gm


def _computed(found: Affine, aside: Aside) -> dict[str, Node]:
    """Return every tensor of the layer, as nodes of the graph beside compute it."""
    call, made = aside.graph.call_function, dict[str, Node]()
    for step in found.steps:
        value = call(per_channel, (aside.copy(step.constant), found.channels))
        made[step.name] = call(torch.neg, (value,)) if step.negated else value
    some = next(iter(made.values()))
    made.setdefault("running_mean", call(torch.zeros_like, (some,)))
    made["running_var"] = call(torch.ones_like, (some,))
    return made
