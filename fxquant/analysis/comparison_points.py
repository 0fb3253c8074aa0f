"""Finds the points where a quantized graph can be compared with the float graph: units, and values it quantizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.analysis.comparison import Unmatched
from fxquant.analysis.float_reference import FloatUnit, float_unit
from fxquant.analysis.naming import path_of, title_of
from fxquant.analysis.weights import Weights, weights_of
from fxquant.errors import user_line
from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.query import VALUE, module_of, nodes_by_name, tensors_of
from fxquant.measure.noise import dequantized, integers
from fxquant.nn.base import QuantizedModule
from fxquant.nn.quantize import Dequantize, Quantize
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import QParams, SharedWith, TensorRef

CALLS = ("call_module", "call_function", "call_method")
IMAGE_RANK = 4

Rounding = Callable[[Any], Any]


@dataclass(slots=True)
class ClippingSums:
    """Sums up how much of a unit's result lies beyond its quantization range, batch by batch."""

    values: int = 0
    clipped: int = 0
    """Values beyond the ends of the quantization range."""
    clipping_noise: float = 0.0
    """Sum of the squares of what is cut off."""

    def look(self, expected: Any, qparams: QParams | None) -> None:
        """Count the values of one batch."""
        if qparams is None or not isinstance(expected, Tensor) or qparams.scale.numel() != 1:
            return
        low, high = ends(qparams)
        cut = (expected - expected.clamp(low, high)).abs()
        self.values += expected.numel()
        self.clipped += int((cut > qparams.scale.to(cut.device) / 2).sum())
        self.clipping_noise += float(cut.double().square().sum())

    def merge(self, other: ClippingSums) -> None:
        """Add the sums of another batch."""
        self.values += other.values
        self.clipped += other.clipped
        self.clipping_noise += other.clipping_noise

    @property
    def share(self) -> float:
        """Return the share of the values that are clipped, 0 to 1."""
        return self.clipped / max(self.values, 1)


def ends(qparams: QParams) -> tuple[float, float]:
    """Return the ends of a quantization range per tensor, as float values."""
    scale, zero_point = float(qparams.scale), float(qparams.zero_point)
    return (qparams.scheme.quant_min - zero_point) * scale, (qparams.scheme.quant_max - zero_point) * scale


@dataclass(frozen=True, slots=True, eq=False)
class ReadersValue:
    """Makes the float values that readers get of a value of the quantized graph. It can be copied without the graph."""

    stores_integers: bool
    qparams: QParams | None
    chain: tuple[nn.Module, ...]
    """Modules through which readers get the value, where they round it."""

    def __call__(self, value: Any) -> Any:
        """Return a value, in any structure, as its readers get it."""
        if self.stores_integers:
            return pytree.tree_map_only(Tensor, lambda q: dequantized(q, self.qparams), value)
        for module in self.chain:
            value = pytree.tree_map_only(Tensor, module, value)
        return value


@dataclass(eq=False)
class ComparisonPoint:
    """A unit, or a quantized value that no unit makes, in the quantized graph."""

    name: str
    """Of the float graph's node whose value it is."""
    node: Node
    """Of the quantized graph."""
    source: Node
    """Of the float graph."""
    pattern: str
    unit: QuantUnit | None
    floats: FloatUnit | None
    qparams: QParams | None
    """Qparams of the result, as its readers expect; None where it is float."""
    stores_integers: bool
    chain: tuple[nn.Module, ...] = ()
    """Modules through which readers get the value, where they round it."""
    roundings: Mapping[Node, Rounding] = field(default_factory=dict)
    """Inputs of ``floats`` that are rounded before they are read."""
    keeps_values: bool = False
    """Has the qparams of its input: rounds nothing."""
    planned: Mapping[str, QParams] = field(default_factory=dict)
    """Operand of the unit -> the qparams that its tensor has by the plan, as far as that is known."""
    clipping: ClippingSums = field(default_factory=ClippingSums)

    @property
    def layer(self) -> Node:
        """Return the node of the float graph that a reader looks for: the one with the weight, else the first."""
        if self.floats is None:
            return self.source
        return self.floats.layer or self.floats.members[0]

    @property
    def module(self) -> str:
        """Path of the user's module, or of a weight."""
        return "" if self.unit is None else path_of(self.layer)

    @property
    def title(self) -> str:
        """Name the point for a message."""
        return self.name if self.unit is None else title_of(self.layer, self.name)

    @property
    def line(self) -> str:
        return user_line(self.layer)

    @property
    def reads(self) -> tuple[Node, ...]:
        """List the nodes whose values are asked of the float run."""
        return (self.source, *(() if self.floats is None else self.floats.inputs))

    def given(self, look: Callable[[Node], Any]) -> tuple[Any, Any]:
        """Compute in float what the unit should give, on the float model's values, rounded.

        Returns:
            With the weight as it is; and with nothing but the weight quantized, None where it has none.
        """
        if self.floats is None:
            return look(self.source), None
        values = {n: self.roundings.get(n, _same)(look(n)) for n in self.floats.inputs}
        weights = self.weights
        rounded = None if weights is None or weights.layer is None else self.floats.run(values, weights.as_given)
        return self.floats.run(values), rounded

    @property
    def readers_value(self) -> ReadersValue:
        """Return what ``dequantized`` does, as an object that refers to no node."""
        return ReadersValue(self.stores_integers, self.qparams, self.chain)

    def dequantized(self, value: Any) -> Any:
        """Return the float values that readers get of a value of the quantized graph."""
        return self.readers_value(value)

    def rounded(self, value: Any) -> Any:
        """Return what readers get of a value of the float model."""
        if self.stores_integers and self.qparams is not None:
            return on_qparams(value, self.qparams)
        own: Any = module_of(self.node)
        return own(value) if isinstance(own, StaticFakeQuantize) else ReadersValue(False, None, self.chain)(value)

    def stored_form(self, expected: Any, value: Any) -> Any:
        """Return what stands for ``value`` in the quantized graph, where the float model's value is to be read."""
        if isinstance(module_of(self.node), StaticFakeQuantize):
            return value
        if self.stores_integers and self.qparams is not None:
            qparams = self.qparams
            return pytree.tree_map_only(Tensor, lambda x: integers(x, qparams), expected)
        return expected

    def channel_axis(self, value: Tensor) -> int:
        """Dimension of the value that counts channels."""
        axis = None if self.floats is None else self.floats.channel_axis
        if axis is None:
            axis = 1 - value.dim() if value.dim() >= IMAGE_RANK else -1
        return axis if -value.dim() <= axis else -1

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """Return the modules that the unit calls in the quantized graph."""
        graph = nodes_by_name(self.node.graph.owning_module)  # type: ignore[arg-type]
        names = () if self.unit is None else self.unit.nodes
        called = (module_of(graph[name]) for name in names if name in graph)
        return tuple(module for module in called if module is not None)

    @functools.cached_property
    def weights(self) -> Weights | None:
        """The unit's weight in both models; None where there is none, or where the two are stored in other forms."""
        if self.unit is None or self.floats is None or "weight" not in self.unit.roles:
            return None
        layer = self.floats.layer_as_run()
        pairs = (weights_of(layer, module) for module in self.layers)
        return None if layer is None else next((pair for pair in pairs if pair is not None), None)


@dataclass(frozen=True, slots=True)
class ComparisonPoints:
    """The points at which two graphs can be compared."""

    by_node: Mapping[Node, ComparisonPoint]
    """Node of the quantized graph -> the point; in the order of the graph."""
    replaced: Mapping[Node, Node]
    """Other nodes of the quantized graph -> the node of the float graph with the same value."""
    unmatched: tuple[Unmatched, ...]


def comparison_points(quantized: GraphModule, plan: QuantPlan, floats: GraphModule) -> ComparisonPoints:
    """Match the units and the rounded values of a quantized graph with the float graph."""
    there, exact = nodes_by_name(quantized), nodes_by_name(floats)
    all_qparams = _PointQParams(plan, quantized)
    found: dict[Node, ComparisonPoint] = {}
    unmatched = []
    # A point for each unit that both graphs have.
    for unit in plan.units:
        if unit.root not in there:
            continue  # it computed nothing: dropout, say
        nodes = float_unit(unit, plan, floats, quantized)
        if isinstance(nodes, str):
            unmatched.append(Unmatched(unit.root, nodes))
            continue
        node = there[unit.root]
        point = ComparisonPoint(
            unit.root,
            node,
            exact[unit.root],
            unit.pattern,
            unit,
            nodes,
            all_qparams.of(unit.roles.get("y")),
            _is_stored(node),
        )
        point.planned = {
            role: plan.qparams[ref]
            for role, ref in unit.roles.items()
            if ref in plan.qparams and not bool(torch.isnan(plan.qparams[ref].scale).any())
        }
        point.chain = () if point.stores_integers else _chain(node)
        point.keeps_values = "y" in unit.roles and isinstance(plan.policies.get(unit.roles["y"]), SharedWith)
        found[node] = point
    # A point for each value that is quantized and that no unit makes: inputs, as a rule.
    made = {unit.root for unit in plan.units if "y" in unit.roles}
    for node in there.values():
        if isinstance(module_of(node), (StaticFakeQuantize, Quantize)):
            name = node.all_input_nodes[0].name
            if name in made or name not in exact or _is_stored(node.all_input_nodes[0]):
                continue
            ref = TensorRef(name)
            found[node] = ComparisonPoint(
                name, node, exact[name], "quantize", None, None, all_qparams.of(ref), _is_stored(node)
            )
    # Say which points round what the weights of others read.
    rounding = {point.name: point for point in found.values() if point.unit is None or "y" in point.unit.roles}
    for point in found.values():
        if point.unit is not None and point.floats is not None:
            point.roundings = _roundings(point.unit, point.floats, rounding, all_qparams)
    # Nodes that both graphs have and that are no point: the isolated run reads the float value there.
    order = {node: index for index, node in enumerate(there.values())}
    inside = {name for unit in plan.units for name in unit.nodes}
    replaced = {
        node: exact[name]
        for name, node in there.items()
        if node not in found and name not in inside and node.op in CALLS and name in exact
    }
    return ComparisonPoints(dict(sorted(found.items(), key=lambda item: order[item[0]])), replaced, tuple(unmatched))


def _roundings(
    unit: QuantUnit, nodes: FloatUnit, points: Mapping[str, ComparisonPoint], all_qparams: _PointQParams
) -> dict[Node, Rounding]:
    names = {unit.roles[role].name for role in unit.inputs}
    found: dict[Node, Rounding] = {}
    for node in nodes.inputs:
        if node.name not in names:
            continue
        point, qparams = points.get(node.name), all_qparams.of(TensorRef(node.name))
        if point is not None:
            found[node] = point.rounded
        elif qparams is not None:
            found[node] = functools.partial(on_qparams, qparams=qparams)
    return found


def on_qparams(value: Any, qparams: QParams) -> Any:
    """Round tensors, in any structure, to qparams."""
    return pytree.tree_map_only(Tensor, lambda x: dequantized(integers(x, qparams), qparams).to(x.dtype), value)


def _same(value: Any) -> Any:
    return value


def _is_stored(node: Node) -> bool:
    """Tell whether the value of a node of a quantized graph is quantized values."""
    if isinstance(module_of(node), Quantize):
        return True
    if node.meta.get(VALUE) is None:  # a tuple, as a move of integers gives it
        return node.op in CALLS and any(map(_is_stored, node.all_input_nodes))
    return any(not info.dtype.is_floating_point for info in tensors_of(node))


def _chain(node: Node) -> tuple[nn.Module, ...]:
    """Return the modules that round a value for all its readers, in a graph of floats."""
    for user in node.users:
        module = module_of(user)
        if isinstance(module, StaticFakeQuantize):
            return (module,)
        if isinstance(module, Quantize) and str(user.target).endswith(f"{node.name}_quantize"):
            back = next((m for u in user.users if isinstance(m := module_of(u), Dequantize)), None)
            return () if back is None else (module, back)
    return ()


class _PointQParams:
    """The qparams of each value: as planned; of a model that was converted uncalibrated, as its modules have them."""

    def __init__(self, plan: QuantPlan, quantized: GraphModule) -> None:
        self._plan, self._nodes = plan, nodes_by_name(quantized)

    def of(self, ref: TensorRef | None) -> QParams | None:
        planned = None if ref is None else self._plan.qparams.get(ref)
        if ref is None or planned is None or not bool(torch.isnan(planned.scale).any()):
            return planned
        owner = self._plan.qparams_owner(ref)
        module = self._module(owner.name)
        return None if module is None else module.scaled(self._plan.qparams_factor(ref))

    def _module(self, name: str) -> QParams | None:
        for at in (f"{name}_quantize", f"{name}_fake_quant", name):
            module = module_of(self._nodes[at]) if at in self._nodes else None
            if isinstance(module, StaticFakeQuantize):
                return module.qparams()
            if isinstance(module, QuantizedModule) and "y" in module._schemes:
                return module.qparams("y")
        return None
