"""Chooses the units that run in int8, so that the sum of all times, those of boundaries too, is the least."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from fxquant.graph.query import is_shape_query, value_of
from fxquant.plan.quant_plan import QuantPlan, QuantUnit

INT8, FLOAT = "int8", "float"
"""The sides of the cut, and what is on them in any case."""

MINIMUM_SPEEDUP = 1.05
"""How many times as fast as int8 a float unit must be measured: what is about equal stays int8, which is smaller."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: of each unit by the name of its root, of each value's boundary by its name."""

    in_int8: Mapping[str, float]
    in_float: Mapping[str, float]
    quantize: Mapping[str, float]
    dequantize: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ValueUse:
    """A value, what makes it and what reads it: roots of units, or FLOAT."""

    value: str
    producer: str
    readers: tuple[str, ...]
    several: bool
    """Whether it is several tensors, which have no boundary."""


def tuned_units(plan: QuantPlan) -> tuple[QuantUnit, ...]:
    """Return the units that may as well run in float. Those that store a weight only are there for its size."""
    return tuple(unit for unit in plan.units if set(unit.roles) != {"weight"})


def flows(gm: GraphModule, plan: QuantPlan) -> Iterator[ValueUse]:
    """Yield every value of the float graph that is, or may be, integers.

    Args:
        gm: The float graph.
        plan: Of all units.
    """
    units = {name: unit for unit in tuned_units(plan) for name in unit.nodes}
    for node in gm.graph.nodes:
        own = units.get(node.name)
        if own is not None and own.root != node.name:
            continue  # a value inside of a unit
        producer = own.root if own is not None and "y" in own.roles else FLOAT
        readers = tuple(dict.fromkeys(_reader(user, node, units) for user in node.users if not is_shape_query(user)))
        if producer != FLOAT or any(reader != FLOAT for reader in readers):
            yield ValueUse(node.name, producer, readers, producer != FLOAT and value_of(node) is None)


def _reader(user: Node, value: Node, units: Mapping[str, QuantUnit]) -> str:
    unit = units.get(user.name)
    if unit is None or value.name not in {unit.roles[role].name for role in unit.inputs}:
        return FLOAT
    return unit.root


def units_in_float(gm: GraphModule, plan: QuantPlan, times: Times) -> set[str]:
    """Return the roots of the units to be left in float, together: the exact minimum, as a cut of a network.

    A value is quantized once if a float operator makes it and any integer unit reads it, and dequantized once if an
    integer unit makes it and any float operator reads it.

    Args:
        gm: The float graph.
        plan: Of all units.
        times: Of every unit in ``tuned_units(plan)``, and of the boundary of every value in ``flows(gm, plan)``.
    """
    network = Network()
    for unit in tuned_units(plan):
        network.add(INT8, unit.root, _cost(times.in_float[unit.root] * MINIMUM_SPEEDUP))
        network.add(unit.root, FLOAT, _cost(times.in_int8[unit.root]))
    for flow in flows(gm, plan):
        if flow.several:
            for reader in flow.readers:
                network.add(flow.producer, reader, NEVER)
                network.add(reader, flow.producer, NEVER)
            continue
        _add_boundary(network, flow, times)
    kept = network.cut(INT8, FLOAT)
    return {unit.root for unit in tuned_units(plan) if unit.root not in kept}


def _add_boundary(network: Network, flow: ValueUse, times: Times) -> None:
    """Nodes of their own stand for 'any reader': each is on the side of a reader that needs the boundary."""
    quantized: Hashable = ("quantized", flow.value)
    dequantized: Hashable = ("dequantized", flow.value)
    network.add(quantized, flow.producer, _cost(times.quantize[flow.value]))
    network.add(flow.producer, dequantized, _cost(times.dequantize[flow.value]))
    for reader in flow.readers:
        network.add(reader, quantized, NEVER)
        network.add(dequantized, reader, NEVER)


def _cost(seconds: float) -> int:
    return round(seconds * 1e9)


NEVER = 1 << 60
"""Capacity of an edge that no cheapest cut goes through."""


class Network:
    """Directed edges with capacities, whole numbers that are at least 0. Edges that are added twice add up."""

    def __init__(self) -> None:
        self._left: dict[Hashable, dict[Hashable, int]] = defaultdict(dict)

    def add(self, start: Hashable, end: Hashable, capacity: int) -> None:
        """Add an edge. It is cut, at the price of its capacity, where ``start`` is on the source's side alone."""
        self._left[start][end] = self._left[start].get(end, 0) + capacity
        self._left[end].setdefault(start, 0)

    def cut(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """Return the source's side of a cheapest cut: of several, the largest. Uses the network up.

        Source:
            Edmonds and Karp, "Theoretical Improvements in Algorithmic Efficiency for Network Flow Problems", JACM 19
            (1972): flow along shortest paths until there is none; then what cannot reach the sink is the source's side.
        """
        while path := self._shortest(source, sink):
            flow = min(self._left[a][b] for a, b in path)
            for a, b in path:
                self._left[a][b] -= flow
                self._left[b][a] += flow
        return set(self._left) - self._reaching(sink)

    def _shortest(self, source: Hashable, sink: Hashable) -> list[tuple[Hashable, Hashable]]:
        before: dict[Hashable, Hashable] = {source: source}
        waiting = deque([source])
        while waiting and sink not in before:
            node = waiting.popleft()
            for other, left in self._left[node].items():
                if left and other not in before:
                    before[other] = node
                    waiting.append(other)
        path: list[tuple[Hashable, Hashable]] = []
        node = sink
        while node in before and node != source:
            path.append((before[node], node))
            node = before[node]
        return path

    def _reaching(self, sink: Hashable) -> set[Hashable]:
        found = {sink}
        waiting: deque[Hashable] = deque([sink])
        while waiting:
            node = waiting.popleft()
            found_now: Iterable[Hashable] = (a for a in self._left[node] if a not in found and self._left[a][node])
            for other in list(found_now):
                found.add(other)
                waiting.append(other)
        return found
