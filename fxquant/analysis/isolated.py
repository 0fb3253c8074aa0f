"""Runs a model in float but for one unit, from that unit on: what lies before it is the float model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.query import called_module, module_of
from fxquant.measure.runner import ROUNDINGS, FloatRun, OrderedNodes, order_by_units
from fxquant.plan.quant_plan import QuantUnit


class UnitsAlone:
    """For each unit the output of the float model in which it alone is quantized.

    The float model runs once for each batch. At each unit a second run goes on from there, with the unit quantized, on
    the values that are alive at this point: so each unit costs what lies after it, and memory holds what two runs need
    at one point of the graph, nothing of other units.

    Args:
        simulated: What ``convert(prepared, to="fake_quant")`` gave.
        units: Those to run alone.
        seed: Of what is drawn at random: a node draws the same numbers in every run.
    """

    def __init__(self, simulated: GraphModule, units: Sequence[QuantUnit], seed: int) -> None:
        first, self._places = order_by_units(simulated, units)
        before = set(first)
        self._order = first + [node for node in simulated.graph.nodes if node not in before]
        self._nodes = OrderedNodes(self._order, seed)
        self._simulated = simulated

    def run(self, bound: Mapping[str, Any]) -> Iterator[tuple[QuantUnit, Any]]:
        """Yield each unit, and the output with that unit quantized.

        Args:
            bound: The inputs by name.
        """
        float_run, unit_run = FloatRun(self._simulated, bound), BoundInterpreter(self._simulated, bound)
        env: dict[Node, Any] = {}
        reached = 0
        for unit, place in self._places:
            self._nodes.advance(float_run, env, reached, place.start)
            reached = place.start
            yield unit, self._with_unit(float_run, unit_run, dict(env), unit, place)

    def float_output(self, bound: Mapping[str, Any]) -> Any:
        """Return the output of the float model."""
        return self._whole(FloatRun(self._simulated, bound))

    def all_quantized(self, bound: Mapping[str, Any]) -> Any:
        """Return the output with all units quantized."""
        return self._whole(BoundInterpreter(self._simulated, bound))

    def _whole(self, run: BoundInterpreter) -> Any:
        return self._nodes.advance(run, {}, 0, len(self._order))

    def _with_unit(
        self, float_run: FloatRun, unit_run: BoundInterpreter, env: dict[Node, Any], unit: QuantUnit, place: range
    ) -> Any:
        members = self._order[place.start : place.stop]
        read = {node for member in members for node in member.all_input_nodes if isinstance(module_of(node), ROUNDINGS)}
        plain = {node: env[node] for node in read}
        env |= {node: called_module(node)(value) for node, value in plain.items()}
        self._nodes.advance(unit_run, env, place.start, place.stop)
        env |= {node: value for node, value in plain.items() if node in env}  # others read it unrounded
        root = members[-1]
        rounding = next((user for user in root.users if _rounds_for_all(user, unit)), None)
        if rounding is not None and root in env:
            env[root] = called_module(rounding)(env[root])  # whoever reads it: the float run hands it on as it is
        return self._nodes.advance(float_run, env, place.stop, len(self._order))


def _rounds_for_all(user: Node, unit: QuantUnit) -> bool:
    """Tell whether a node rounds the unit's result; rounding that a reader chooses in each call is the reader's."""
    return "y" in unit.roles and isinstance(module_of(user), StaticFakeQuantize)
