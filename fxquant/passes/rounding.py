"""Finds where a float graph has to round to hold what the int8 graph will hold. Shared by the passes that simulate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxquant.fake_quantize.adaround import LearnedRounding
from fxquant.fake_quantize.converted import DynamicFakeQuantize, StaticFakeQuantize
from fxquant.fake_quantize.qparams import fake_quantize, from_integers
from fxquant.graph.edit import add_module, insert_after
from fxquant.graph.query import called_module, nodes_by_name
from fxquant.graph.recurrent import weight_of
from fxquant.nn.simulated_recurrent import INNER_ROUNDING
from fxquant.passes.base import PassContext
from fxquant.patterns.pattern import Output
from fxquant.plan.quant_plan import QuantUnit
from fxquant.plan.spec import Dynamic, QParamsPolicy, TensorRef


@dataclass(frozen=True, slots=True)
class RoundingPoint:
    """One value that is quantized, and those of its users that see the rounded value."""

    node: Node
    ref: TensorRef
    users: tuple[Node, ...]


def rounding_points(gm: GraphModule, ctx: PassContext, values: Iterable[TensorRef]) -> list[RoundingPoint]:
    """Return every activation of ``values`` that is rounded.

    A unit's output is rounded for all its users, since no other value exists in the integer graph. A value that no
    unit makes is rounded for the units that read it; whatever else reads it goes on reading the float value. Where it
    goes through a dropout that trains, it is rounded before that, for all that reads the dropout: they see one mask.
    """
    nodes = nodes_by_name(gm)
    made = {unit.roles["y"].name: unit for unit in ctx.plan.units if "y" in unit.roles}
    idle = [nodes[call.name] for call in ctx.plan.idle]
    readers: dict[str, list[Node]] = {}
    for unit in ctx.plan.units:
        for name in dict.fromkeys(unit.roles[role].name for role in unit.inputs):
            inside = {nodes[member] for member in unit.nodes}
            readers.setdefault(name, []).extend(user for user in nodes[name].users if _leads_to(user, inside, idle))
    points, inside_units = [], ctx.plan.rounding_inside()
    for ref in values:
        if ref.kind != "activation":
            continue
        node = nodes[ref.name]
        if ref.name not in made:
            if ref.name in readers or ref.name not in inside_units:
                points.append(RoundingPoint(node, ref, tuple(readers.get(ref.name, ()))))
        elif ctx.pattern_of(made[ref.name]).output is not Output.PICKED:
            points.append(RoundingPoint(node, ref, tuple(node.users)))
    return points


def _leads_to(user: Node, inside: Collection[Node], idle: Collection[Node]) -> bool:
    """Tell whether a reader of a value belongs to a unit, or hands the value on to one."""
    return user in inside or (user in idle and any(_leads_to(reader, inside, idle) for reader in user.users))


def insert_call_qparams(gm: GraphModule, ctx: PassContext) -> dict[TensorRef, str]:
    """Round what units quantize anew in each call: the first argument of their first node.

    The answer says where the modules are that do so. To be called when all other values are rounded, since it is the
    rounded value that such a unit reads.
    """
    nodes, homes = nodes_by_name(gm), {}
    for unit in ctx.plan.units:
        if ctx.pattern_of(unit).rounds_inside:
            continue
        for ref in unit.roles.values():
            policy = ctx.plan.policies.get(ref)
            if isinstance(policy, Dynamic):
                reader = nodes[unit.nodes[0]]
                value = reader.args[0]
                assert isinstance(value, Node)  # the annotate pass saw a tensor there
                target = add_module(gm, f"{unit.root}_call_fake_quant", DynamicFakeQuantize(policy))
                insert_after(value, target, users=(reader,))
                homes[ref] = target
    return homes


def inner_rounding(
    unit: QuantUnit, ctx: PassContext, of_policy: Callable[[QParamsPolicy], nn.Module] | None = None
) -> nn.Module | None:
    """Make what a layer rounds its input and its hidden states by; None where other modules round for it.

    ``of_policy`` makes it where qparams are still to be learned.
    """
    if not ctx.pattern_of(unit).rounds_inside:
        return None
    policy = ctx.plan.policies[unit.roles["x"]]
    if isinstance(policy, Dynamic):
        return DynamicFakeQuantize(policy)
    if of_policy is not None:
        return of_policy(policy)
    return StaticFakeQuantize(ctx.plan.qparams[unit.roles["x"]])


def inner_home(layer: str) -> str:
    """Return the path of what a layer at a path rounds its input by."""
    return f"{layer}.{INNER_ROUNDING}"


def rounded_weight(node: Node, unit: QuantUnit, ctx: PassContext) -> Tensor:
    """Return the weight of the layer that a node calls, quantized and dequantized: float32 of its shape."""
    weight = weight_of(called_module(node)).detach()
    qparams, own = ctx.plan.qparams[unit.roles["weight"]], ctx.weight_layers.get(unit.root)
    if own is None:
        return fake_quantize(weight, qparams.scale, qparams.zero_point, qparams.scheme)
    rounding = own.weight_fake_quant
    assert isinstance(rounding, LearnedRounding)  # else it were not among them
    return from_integers(rounding.integers(weight), qparams.scale, qparams.zero_point, qparams.scheme)
