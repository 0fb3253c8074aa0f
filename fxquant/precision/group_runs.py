"""Runs a simulation with one group rounded alone, or with all groups but one, from that group on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from fxquant.fake_quantize.converted import DynamicFakeQuantize, StaticFakeQuantize
from fxquant.graph.query import module_of, nodes_by_name
from fxquant.measure.parity import plan_of
from fxquant.measure.runner import FloatRun, OrderedNodes, PartlyRounded
from fxquant.precision.groups import PrecisionGroup, keeps_values, outside_values


def own_roundings(simulated: GraphModule, group: PrecisionGroup) -> tuple[Node, ...]:
    """Return the nodes of a simulation that round by the choice of a group: each belongs to one group.

    These are its layers with a weight, what rounds its results, and what rounds the values that it reads from no other
    unit. What other units give it is rounded by their choice.
    """
    nodes, plan = nodes_by_name(simulated), plan_of(simulated)
    planned = {unit.root: unit for unit in plan.units}
    found: list[Node] = []
    for root in group.roots:
        if root not in planned:
            continue  # it is float here
        unit = planned[root]
        members = [nodes[name] for name in unit.nodes]
        found += [node for node in members if node.op == "call_module"]
        if "y" in unit.roles and not keeps_values(unit, plan):
            found += _roundings_behind(members[-1])
        for ref in outside_values(unit, plan):
            if ref.name in nodes:
                found += _roundings_behind(nodes[ref.name])
        found += [node for node in members[0].all_input_nodes if isinstance(module_of(node), DynamicFakeQuantize)]
    return tuple(dict.fromkeys(found))


def _roundings_behind(node: Node) -> list[Node]:
    return [user for user in node.users if isinstance(module_of(user), StaticFakeQuantize)]


class GroupRuns:
    """For each group the output of a model in which it alone is rounded, or it alone is not.

    The model that all else is of runs once for each batch. At each group a second run goes on from there: so a group
    costs what lies behind it, and memory holds what two runs need at one point of the graph.

    Args:
        simulated: What rounds.
        groups: Those to run.
        seed: Of what is drawn at random: a node draws the same numbers in every run.
        alone: True: one group is rounded, and all others are float. False: one group is float.
    """

    def __init__(
        self, simulated: GraphModule, groups: Sequence[PrecisionGroup], seed: int, *, alone: bool = True
    ) -> None:
        self._simulated, self._alone = simulated, alone
        order = list(simulated.graph.nodes)
        self._nodes = OrderedNodes(order, seed)
        place = {node: index for index, node in enumerate(order)}
        self._all = {str(node.target) for node in order if node.op == "call_module"}
        self._runs: list[tuple[int, int, frozenset[str]]] = []
        for index, group in enumerate(groups):
            own = own_roundings(simulated, group)
            targets = frozenset(str(node.target) for node in own)
            if own:
                self._runs.append((min(place[node] for node in own), index, targets))
        self._runs.sort(key=lambda each: each[:2])
        self._length = len(order)

    def run(self, bound: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
        """Yield the index of each group, in the order of the graph, and the output; of one without roundings, nothing.

        Args:
            bound: The inputs by name.
        """
        base = self._run(bound, () if self._alone else self._all)
        env: dict[Node, Any] = {}
        reached = 0
        for start, index, own in self._runs:
            self._nodes.advance(base, env, reached, start)
            reached = start
            run = self._run(bound, own if self._alone else self._all - own)
            yield index, self._nodes.advance(run, dict(env), start, self._length)

    def whole(self, bound: Mapping[str, Any], *, rounded: bool) -> Any:
        """Return the output of the float model, or with all groups rounded."""
        run = self._run(bound, self._all if rounded else ())
        return self._nodes.advance(run, {}, 0, self._length)

    def _run(self, bound: Mapping[str, Any], rounded: Collection[str]) -> FloatRun:
        return PartlyRounded(self._simulated, bound, rounded)
