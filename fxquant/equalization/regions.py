"""Finds the regions of a graph: the layers between which each channel may be scaled by a factor of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch.fx import GraphModule, Node

from fxquant.equalization.channels import Ids, Sets
from fxquant.equalization.operators import rule_of
from fxquant.equalization.products import product_regions
from fxquant.equalization.tracker import Clamped, LayerEnd, Spread, Tracked, Tracker
from fxquant.graph.shapes import run_example
from fxquant.plan.region import FIXED, Bound, End, Region

NO_SHAPES = "without example inputs the shapes of values are not known"
NOBODY_READS = "no layer reads it"
NOBODY_MAKES = "no layer makes it"


def find_regions(
    gm: GraphModule,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    with_data: bool = False,
) -> tuple[Region, ...]:
    """Return the regions in the order of the graph, those of which no channel can be scaled with the reason.

    Behind them stand those of products that sum over channels, of queries and keys.

    Args:
        gm: A prepared float graph. It is not changed.
        args: The example inputs.
        kwargs: The same.
        with_data: Whether there is data that tells how near values come to the bounds of clamps. Without it, a clamp
            with a bound that is not 0 ends a region.
    """
    tracker = Tracker(gm, numbers_of(gm, args, kwargs), with_data)
    tracker.run(rule_of)
    return _Regions(tracker).found()


def numbers_of(gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values on the example of the nodes that are numbers, such as sizes, by name."""
    found: dict[str, Any] = {}

    def visit(node: Node, value: Any) -> None:
        if isinstance(value, int) or (isinstance(value, tuple) and all(isinstance(item, int) for item in value)):
            found[node.name] = value

    run_example(gm, args, kwargs, visit)
    return found


class _Regions:
    """Groups the channels that a tracker has found."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._channels = tracker.channels
        ends = [end for end in tracker.ends.values() if not (end.kind == "rows" and end.path in tracker.folded)]
        self._sets = Sets(len(self._channels))
        self._ends = [end for end in ends if end.ids]
        self._of_products = product_regions(tracker, self._ends)
        for end in self._ends:
            for channel in end.ids:
                self._sets.join(self._root(end.ids), self._channels.factor_of(channel))

    def _root(self, ids: Ids) -> int:
        """Return what stands for the region of channels."""
        return self._sets.find(self._channels.factor_of(ids[0]))

    def found(self) -> tuple[Region, ...]:
        ends: dict[int, list[LayerEnd]] = {}
        for end in self._ends:
            ends.setdefault(self._root(end.ids), []).append(end)
        values: dict[int, list[str]] = {}
        for node, value in self._tracker.values.items():
            if isinstance(value, (Tracked, Spread)) and value.ids:
                values.setdefault(self._root(value.ids), []).append(node.name)
        clamps: dict[int, list[Clamped]] = {}
        for clamp in self._tracker.clamps:
            clamps.setdefault(self._root(clamp.tracked.ids), []).append(clamp)
        found = [self._region(group, clamps.get(root, []), tuple(values.get(root, ()))) for root, group in ends.items()]
        return (*found, *self._of_products)

    def _region(self, ends: list[LayerEnd], clamps: list[Clamped], values: tuple[str, ...]) -> Region:
        sources = [end for end in ends if end.kind != "columns"]
        sinks = [end for end in ends if end.kind == "columns"]
        written, read = (
            {self._channels.factor_of(channel) for end in some for channel in end.ids} for some in (sources, sinks)
        )
        ids = [channel for end in ends for channel in end.ids]
        factors = list(dict.fromkeys(map(self._channels.factor_of, ids)))
        reasons = Counter(self._reason(factor, written, read) for factor in factors)
        free = [factor for factor in factors if not self._reason(factor, written, read)]
        number = {factor: index for index, factor in enumerate(free)}

        def numbered(ids: Ids) -> tuple[int, ...]:
            return tuple(number.get(self._channels.factor_of(channel), FIXED) for channel in ids)

        made, taken = (
            tuple(End(end.path, end.kind, numbered(end.ids), end.behind) for end in some) for some in (sources, sinks)
        )
        bounds = tuple(
            Bound(c.node.name, c.node.all_input_nodes[0].name, c.tracked.axis, c.low, c.high, numbered(c.tracked.ids))
            for c in clamps
        )
        del reasons[""]
        reason = max(reasons, key=lambda text: reasons[text], default="")
        return Region(made, taken, bounds, len(free), len(factors), values, reason)

    def _reason(self, factor: int, written: set[int], read: set[int]) -> str:
        """Return why a channel keeps its scale."""
        if reason := self._channels.reason(factor):
            return reason
        if factor not in read:
            return NOBODY_READS
        return "" if factor in written else NOBODY_MAKES
