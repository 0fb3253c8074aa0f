"""Measures the noise of each region alone: what its rounded weights and values add to what its sinks give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.equalization.layers import channel_axis
from fxquant.graph.query import nodes_by_name
from fxquant.measure.noise import with_error
from fxquant.measure.parity import plan_of
from fxquant.measure.runner import FloatRun, all_values, function_of
from fxquant.passes.scale_channels import output_factors
from fxquant.plan.region import Region
from fxquant.quantizer.data import PreparedModel


@dataclass(frozen=True, slots=True)
class _Sink:
    """What a layer gives that reads a region."""

    node: Node
    axis: int
    factors: Tensor
    """What its channels were divided by, float64 [C]."""


@dataclass(slots=True)
class _Part:
    """The nodes of a region in a simulation, with the sums of its sinks."""

    members: list[Node]
    sinks: list[_Sink]
    signal: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.signal, self.noise = [0.0] * len(self.sinks), [0.0] * len(self.sinks)

    def add(self, floats: Mapping[Node, Any]) -> None:
        """Run the part on values of the float model, and add what its roundings change."""
        rounded: dict[Node, Any] = {}
        for node in self.members:
            args, kwargs = map_arg(
                (node.args, node.kwargs), lambda source: rounded[source] if source in rounded else floats[source]
            )
            rounded[node] = function_of(node, args)(*args, **kwargs)
        for index, sink in enumerate(self.sinks):
            exact, _, error = with_error(floats[sink.node], rounded[sink.node])
            factors = sink.factors.to(exact.device).reshape(-1, *[1] * (-1 - sink.axis))
            self.signal[index] += float((exact * factors).square().sum())
            self.noise[index] += float((error * factors).square().sum())

    def result(self) -> float:
        """Return noise over signal, the mean over the sinks; 0 where there is no signal."""
        parts = [noise / signal for noise, signal in zip(self.noise, self.signal, strict=True) if signal > 0]
        return sum(parts) / len(parts) if parts else 0.0


class RegionNoise:
    """Measures regions in one simulation: each alone, on values of the float model.

    Args:
        simulated: What ``convert_by`` gave.
        prepared: What it was made of, scaled or not.
        regions: Number -> region, of those that are measured.
        factors: Number -> the factors that its values were divided by; those that are missing are 1.
        others: All regions: the channels that a sink gives belong to one of them.
    """

    def __init__(
        self,
        simulated: GraphModule,
        prepared: PreparedModel,
        regions: Mapping[int, Region],
        factors: Mapping[int, Tensor],
        others: Sequence[Region],
    ) -> None:
        self._simulated = simulated
        self._nodes = nodes_by_name(simulated)
        self._units = {unit.root: unit for unit in plan_of(simulated).units}
        self._root_of = {name: unit.root for unit in prepared.plan.units for name in unit.nodes}
        self._calls: dict[str, list[str]] = {}
        for node in prepared.graph_module.graph.nodes:
            if node.op == "call_module":
                self._calls.setdefault(str(node.target), []).append(node.name)
        self._given: dict[str, Tensor] = {}
        for number, region in enumerate(others):
            for end in (*region.sources, *(region.sinks if region.products else ())):
                path, ones = end.behind or end.path, torch.ones(region.channels, dtype=torch.float64)
                divided = 1 / output_factors(end, factors.get(number, ones))
                self._given[path] = self._given.get(path, torch.ones(1)) * divided
        self._prepared = prepared.graph_module
        self._parts = {number: self._part(region) for number, region in regions.items()}

    def add(self, bound: Mapping[str, Any]) -> None:
        """Run one batch."""
        floats = all_values(FloatRun(self._simulated, bound, keep_values=True))
        with torch.no_grad():
            for part in self._parts.values():
                part.add(floats)

    def results(self) -> dict[int, float]:
        """Return noise over signal of each region."""
        return {number: part.result() for number, part in self._parts.items()}

    def _part(self, region: Region) -> _Part:
        sinks = self._sinks(region)
        ends = (*region.sources, *(region.sinks if region.products else ()))
        sources = dict.fromkeys(end.behind or end.path for end in ends)
        begin = {node for path in sources for name in self._calls[path] for node in self._members_of(name)}
        ahead, behind = set(begin), {sink.node for sink in sinks}
        for node in self._simulated.graph.nodes:
            if ahead.intersection(node.all_input_nodes):
                ahead.add(node)
        for node in reversed(self._simulated.graph.nodes):
            if behind.intersection(node.users):
                behind.add(node)
        return _Part([node for node in self._simulated.graph.nodes if node in ahead and node in behind], sinks)

    def _sinks(self, region: Region) -> list[_Sink]:
        if region.products:  # factors cancel in the sum
            return [_Sink(self._result_of(name), -1, torch.ones(1)) for name in region.products]
        return [
            _Sink(self._result_of(name), channel_axis(layer), self._given.get(end.path, torch.ones(1)))
            for end in region.sinks
            for layer in [self._prepared.get_submodule(end.path)]
            for name in self._calls[end.path]
        ]

    def _result_of(self, name: str) -> Node:
        """Return the node of a simulation whose value is that of a layer's unit."""
        return self._nodes[self._root_of.get(name, name)]

    def _members_of(self, name: str) -> list[Node]:
        root = self._root_of.get(name, name)
        names = self._units[root].nodes if root in self._units else (root,)
        return [self._nodes[each] for each in names]
