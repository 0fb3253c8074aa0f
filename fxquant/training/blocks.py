"""Cuts a graph into blocks that are learned one after the other: at values through which everything goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch.fx import GraphModule, Node

from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.query import (
    VALUE,
    is_shape_query,
    module_of,
    nodes_by_name,
    operator_name,
    qualified_name,
    tensors_of,
    value_of,
)
from fxquant.measure.runner import order_by_units
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.training.weighted_units import layer_node

LARGEST_BLOCK = 8
"""Weights of a block; one with more is split at the sums inside, or into units."""
LARGEST_CHAIN = 5
"""Weights of a module whose layers follow one another, to be one block, as the three of an inverted residual are."""


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes that are learned together: the value of the last one is to be that of the float model."""

    name: str
    """Path of the module that holds its weights, or of its only layer."""
    nodes: tuple[Node, ...]
    """In the order in which they run."""
    units: tuple[QuantUnit, ...]
    """Those with a weight."""

    @property
    def end(self) -> Node:
        """Return the node whose value leaves the block."""
        return self.nodes[-1]

    @property
    def read(self) -> tuple[Node, ...]:
        """Return the nodes outside of the block that it reads."""
        inside = {*self.nodes}
        return tuple(dict.fromkeys(n for node in self.nodes for n in node.all_input_nodes if n not in inside))


class Cutter:
    """Orders the nodes of a simulation, and cuts them into blocks.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave. Not changed.
        plan: Its plan.
    """

    def __init__(self, simulated: GraphModule, plan: QuantPlan) -> None:
        ordered, _ = order_by_units(simulated, plan.units)
        known = {*ordered}
        ordered += [node for node in simulated.graph.nodes if node.op != "output" and node not in known]
        self.order = sorted(ordered, key=lambda node: node.op not in ("placeholder", "get_attr"))  # given ones first
        self._given = sum(node.op in ("placeholder", "get_attr") for node in ordered)
        self._by_name = nodes_by_name(simulated)
        self._unit_of = plan.unit_of()
        self.dependent: set[Node] = set()
        """Nodes whose value depends on what a unit computes."""
        for node in self.order:
            if node.name in self._unit_of or self.dependent.intersection(node.all_input_nodes):
                self.dependent.add(node)

    def automatic(self) -> list[Block]:
        """Return the blocks between values through which everything goes; none has more than ``LARGEST_BLOCK`` weights.

        Layers that follow one another in a module of few weights make one block.
        """
        ranges = list(self._merged(self._weighted(self._between_cuts())))
        return [self._block(part) for each in ranges for part in self._split(each)]

    def by_units(self) -> list[Block]:
        """Return a block for each unit with a weight."""
        return [self._block(part) for part in self._single_units(range(len(self.order)))]

    def weights_of(self, nodes: Iterable[Node]) -> list[QuantUnit]:
        """Return the units with a weight among some nodes."""
        return [unit for unit in self.units_of(nodes) if "weight" in unit.roles]

    def units_of(self, nodes: Iterable[Node]) -> list[QuantUnit]:
        """Return the units that have a node among some."""
        names = [node.name for node in nodes if node.name in self._unit_of]
        return [self._unit_of[root] for root in dict.fromkeys(self._unit_of[name].root for name in names)]

    def members(self, unit: QuantUnit) -> list[Node]:
        """Return the nodes of a unit."""
        return [self._by_name[name] for name in unit.nodes]

    def layer(self, unit: QuantUnit) -> Node:
        """Return the node of a unit that calls the layer with the weight."""
        return layer_node(unit, self._by_name)

    def is_rounding(self, node: Node) -> bool:
        """Tell whether a node rounds a value with qparams that are known."""
        return isinstance(module_of(node), StaticFakeQuantize)

    def block(self, name: str, nodes: Sequence[Node]) -> Block:
        """Make a block of nodes that stand side by side."""
        return Block(name, tuple(nodes), tuple(self.weights_of(nodes)))

    def put_together(self, nodes: Sequence[Node]) -> None:
        """Move nodes to the place of the last of them: nothing between them needs what they give."""
        chosen = {*nodes}
        stop = self.order.index(nodes[-1]) + 1
        before = [node for node in self.order[:stop] if node not in chosen]
        self.order = [*before, *nodes, *self.order[stop:]]

    def path_of(self, node: Node) -> str:
        """Return the path of the module that a node belongs to; a rounding belongs to what it rounds."""
        return qualified_name(self._rounded(node))

    def _rounded(self, node: Node) -> Node:
        """Return what a node rounds; the node itself where it does not round."""
        while self.is_rounding(node) and node.all_input_nodes:
            node = node.all_input_nodes[0]
        return node

    def _at(self, place: int) -> Node:
        return self.order[place]

    def _weights(self, places: range) -> list[QuantUnit]:
        return self.weights_of(self.order[places.start : places.stop])

    def _block(self, places: range) -> Block:
        nodes = self.order[places.start : places.stop]
        units = self.weights_of(nodes)
        return self.block(
            _common([self.path_of(self.layer(unit)) for unit in units]) or self._rounded(nodes[-1]).name, nodes
        )

    def _between_cuts(self) -> Iterator[range]:
        """Yield the places between cuts."""
        place = {node: index for index, node in enumerate(self.order)}
        last_read = {node: max((place[user] for user in node.users if user in place), default=-1) for node in place}
        units = {unit.root: unit for unit in self._unit_of.values()}
        last_member = {root: max(place[self._by_name[name]] for name in unit.nodes) for root, unit in units.items()}
        alive: set[Node] = set()
        start, inside_until = 0, -1
        for index, node in enumerate(self.order):
            if node.name in self._unit_of:
                inside_until = max(inside_until, last_member[self._unit_of[node.name].root])
            if node in self.dependent and _is_value(node):
                alive.add(node)
            alive = {each for each in alive if last_read[each] > index}
            if index < inside_until or not alive <= {node} or not self._may_end(node):
                continue
            yield range(start, index + 1)
            start = index + 1
        if start < len(self.order):
            yield range(start, len(self.order))

    def _may_end(self, node: Node) -> bool:
        """Tell whether a value can be compared, and is rounded no more."""
        info = value_of(node)
        if node not in self.dependent or not _is_value(node) or (info is None and VALUE in node.meta):
            return False
        return not (node.users and all(map(self.is_rounding, node.users)))

    def _weighted(self, ranges: Iterator[range]) -> Iterator[range]:
        """Add places without a weight to those that follow; those behind the last weight are left out."""
        start: int | None = None
        for each in ranges:
            start = max(each.start, self._given) if start is None else start
            if self._weights(each):
                yield range(start, each.stop)
                start = None

    def _merged(self, ranges: Iterator[range]) -> Iterator[range]:
        """Make one of those that follow one another in the innermost module that holds several weights."""
        found = list(ranges)
        paths = [[self.path_of(self.layer(unit)) for unit in self._weights(each)] for each in found]
        everything = [path for each in paths for path in each]
        index = 0
        while index < len(found):
            stop = index + 1
            for module in _modules_around(paths[index][0]):
                count = sum(_is_below(path, module) for path in everything)
                if count > 1:
                    while stop < len(found) and all(_is_below(path, module) for path in paths[stop]):
                        stop += 1
                    held = [path for each in paths[index:stop] for path in each if _is_below(path, module)]
                    if len(held) != count or count > LARGEST_CHAIN:
                        stop = index + 1
                    break
            yield range(found[index].start, found[stop - 1].stop)
            index = stop

    def _split(self, places: range) -> Iterator[range]:
        if len(self._weights(places)) <= LARGEST_BLOCK:
            yield places
            return
        stops: list[int] = []
        for place in places:
            start = stops[-1] if stops else places.start
            if self._is_sum(self._at(place)) and self._weights(range(start, place + 1)):
                stops.append(self._with_rounding(place + 1))
        if stops and not self._weights(range(stops[-1], places.stop)):
            stops.pop()  # what follows belongs to the last part
        for start, stop in pairwise([places.start, *stops, places.stop]):
            yield from self._at_most(range(start, stop))

    def _at_most(self, places: range) -> Iterator[range]:
        if len(self._weights(places)) <= LARGEST_BLOCK and self._may_end(self._at(places.stop - 1)):
            yield places
        else:
            yield from self._single_units(places)

    def _single_units(self, places: range) -> Iterator[range]:
        for unit in self._weights(places):
            members = [place for place in places if self._at(place).name in unit.nodes]  # side by side
            yield range(members[0], self._with_rounding(members[-1] + 1))

    def _with_rounding(self, stop: int) -> int:
        """Go on to the node that rounds the value before ``stop``, if it follows."""
        following = self.order[stop : stop + 1]
        return (
            stop + 1 if following and self.is_rounding(following[0]) and self._reads(following[0], stop - 1) else stop
        )

    def _reads(self, node: Node, place: int) -> bool:
        return self._at(place) in node.all_input_nodes

    def _is_sum(self, node: Node) -> bool:
        """Tell whether a unit ends here that adds values which units have made."""
        unit = self._unit_of.get(node.name)
        if unit is None or unit.root != node.name:
            return False
        return any(
            operator_name(each) in ("add", "sub") and sum(n in self.dependent for n in each.all_input_nodes) > 1
            for each in self.members(unit)
        )


def _is_value(node: Node) -> bool:
    """Tell whether a node gives tensors; of one that passes have made without saying so, its function tells."""
    return bool(tensors_of(node)) if VALUE in node.meta else not is_shape_query(node)


def _modules_around(path: str) -> Iterator[str]:
    """Yield the paths of the modules that hold one, the innermost first."""
    while path := path.rpartition(".")[0]:
        yield path


def _is_below(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _common(paths: Sequence[str]) -> str:
    """Return the path of the innermost module that holds all of them; of one, itself."""
    if len(paths) == 1:
        return paths[0]
    parts = [path.split(".") for path in paths]
    length = next((i for i, names in enumerate(zip(*parts, strict=False)) if len({*names}) > 1), min(map(len, parts)))
    return ".".join(parts[0][:length])
