"""Runs a quantized model beside its float model, batch by batch, and sums up how far each layer lies from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.analysis.comparison import Comparison, LayerComparison, Unmatched, sorted_by_harm
from fxquant.analysis.comparison_points import ClippingSums, ComparisonPoint, ComparisonPoints
from fxquant.analysis.suspects import cause_of, fault_of
from fxquant.graph.inputs import bind
from fxquant.measure.noise import DeviationSums
from fxquant.measure.runner import Stepper, ValuesOnDemand, as_taken, first_tensor


@dataclass(slots=True)
class PointSums:
    """What is summed up of each point: of one batch, or of all that were folded."""

    alone: dict[ComparisonPoint, DeviationSums]
    here: dict[ComparisonPoint, DeviationSums]
    weight: dict[ComparisonPoint, DeviationSums]
    """Of each unit's result, with nothing but its weight quantized."""
    clipping: dict[ComparisonPoint, ClippingSums]
    outputs: list[DeviationSums] = field(default_factory=list)
    """Of each tensor that the model gives; of all batches together, of all tensors."""
    other: dict[ComparisonPoint, str] = field(default_factory=dict)
    """Points that turned out to hold values of another kind in the two models -> how."""

    @classmethod
    def of(cls, points: ComparisonPoints) -> PointSums:
        """Make sums of nothing."""
        found = points.by_node.values()
        alone, here, weight = ({point: DeviationSums() for point in found} for _ in range(3))
        return cls(alone, here, weight, {point: ClippingSums() for point in found})

    def to_numbers(self) -> list[Any]:
        """Return them as JSON can hold them, in the order of the points."""
        rows = []
        for point, clipped in self.clipping.items():
            sums = [each[point].to_numbers() for each in (self.alone, self.here, self.weight)]
            rows.append([*sums, [clipped.values, clipped.clipped, clipped.clipping_noise], self.other.get(point, "")])
        return [[each.to_numbers() for each in self.outputs], rows]

    def merge(self, found: Any) -> None:
        """Add what ``to_numbers`` gave of the next batch. A point that differs in kind counts no more."""
        outputs, rows = found
        self.outputs = self.outputs or [DeviationSums()]
        for numbers in outputs:
            self.outputs[0].merge(DeviationSums.of_numbers(numbers))
        for point, (*sums, clipped, other) in zip(self.clipping, rows, strict=True):
            if point in self.other:
                continue
            if other:
                self.other[point] = other
                continue
            for total, numbers in zip((self.alone, self.here, self.weight), sums, strict=True):
                total[point].merge(DeviationSums.of_numbers(numbers))
            self.clipping[point].merge(ClippingSums(*clipped))


class ComparisonRun:
    """Three runs side by side: the float model; the quantized one; and the quantized one on the float model's values.

    In the third, every value is replaced by that of the float model, rounded as the layers that read it expect, as
    soon as it has been measured: so nothing accumulates.
    """

    def __init__(self, floats: GraphModule, quantized: GraphModule, points: ComparisonPoints) -> None:
        self._floats, self._quantized, self._points = floats, quantized, points
        self._total, self._batch = PointSums.of(points), PointSums.of(points)
        self.batches = 0

    def measure(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Measure one batch, and return what ``fold`` adds: for each point its sums, or how its values differ."""
        self._batch = PointSums.of(self._points)
        for point in self._points.by_node.values():
            point.clipping = self._batch.clipping[point]
        floats, points = self._floats, self._points
        # Say how often each value of the float model will be read.
        demand: Counter[Node] = Counter()
        for point in points.by_node.values():
            demand.update(point.reads)
        demand.update(points.replaced.values())
        exact = ValuesOnDemand(floats, bind(floats, args, kwargs, "this batch"), demand)
        bound = as_taken(self._quantized, bind(self._quantized, args, kwargs, "this batch"))
        # Run both graphs in lockstep; the isolated run goes on with float values at each point.
        here, alone = Stepper(self._quantized, bound), Stepper(self._quantized, bound)
        for node in self._quantized.graph.nodes:
            value, isolated = here.step(node), alone.step(node)
            if (known := points.by_node.get(node)) is not None:
                alone.env[node] = self._measure(known, value, isolated, exact)
            elif (source := points.replaced.get(node)) is not None:
                alone.env[node] = _in_place_of(isolated, exact.look(source))
                exact.done_with(source)
            here.free_after(node)
            alone.free_after(node)
            # Measure the outputs.
            if node.op == "output":
                expected = exact.look(next(n for n in floats.graph.nodes if n.op == "output"))
                for want, got in zip(*(_tensors(v) for v in (expected, value)), strict=False):
                    if want.shape == got.shape:
                        self._batch.outputs.append(DeviationSums())
                        self._batch.outputs[-1].add(want, got, -1)
        return self._batch.to_numbers()

    def fold(self, name: str, found: Any) -> None:
        """Add what ``measure`` gave of the next batch."""
        del name
        self._total.merge(found)
        self.batches += 1

    def _measure(self, point: ComparisonPoint, value: Any, isolated: Any, exact: ValuesOnDemand) -> Any:
        """Add up one layer, and answer with what stands for the float model's value in its place."""
        whole = exact.look(point.source)
        expected, result = first_tensor(whole), first_tensor(point.dequantized(value))
        alike = _are_alike(expected, result)
        replaced = point.stored_form(whole, isolated) if alike or not isinstance(expected, Tensor) else isolated
        if alike and point not in self._batch.other:
            given, with_weight = map(first_tensor, point.given(exact.look))
            axis = point.channel_axis(expected)
            if with_weight is not None:
                self._batch.weight[point].add(given, with_weight, axis)
            self._batch.here[point].add(expected, result, axis)
            self._batch.alone[point].add(given, first_tensor(point.dequantized(isolated)), axis)
            point.clipping.look(given, point.qparams)
        elif isinstance(expected, Tensor) and isinstance(result, Tensor):
            self._batch.other[point] = (
                f"its value is {list(result.shape)}, that of the float model {list(expected.shape)}"
            )
        for node in point.reads:
            exact.done_with(node)
        return replaced

    def result(self) -> Comparison:
        """Return what was measured so far."""
        rows = []
        for index, (node, point) in enumerate(self._points.by_node.items()):
            point.clipping = self._total.clipping[point]
            alone, here = self._total.alone[point], self._total.here[point]
            if (
                point in self._total.other
                or not len(here.signal)
                or (point.keeps_values and not float(alone.noise.sum()))
            ):
                continue
            weight = None if point.weights is None else point.weights.deviation()
            isolated = alone.result()
            rows.append(
                LayerComparison(
                    unit=point.name,
                    name=point.title,
                    module=point.module,
                    pattern=point.pattern,
                    line=point.line,
                    place=index,
                    isolated=isolated,
                    accumulated=here.result(),
                    weight=weight,
                    fault=fault_of(point, node),
                    cause=cause_of(point, alone, self._total.weight[point]),
                    overrun=alone.total_lost,
                )
            )
        other = tuple(Unmatched(point.name, reason) for point, reason in self._total.other.items())
        output = self._total.outputs[0] if self._total.outputs else DeviationSums()
        unmatched, numbers = self._points.unmatched + other, len(output.signal) > 0
        return Comparison(sorted_by_harm(rows), output.result(), self.batches, unmatched, numbers)


def _are_alike(expected: Any, result: Any) -> bool:
    return isinstance(expected, Tensor) and isinstance(result, Tensor) and expected.shape == result.shape


def _in_place_of(value: Any, expected: Any) -> Any:
    """Return the float model's value, where it is of the same kind as the quantized model's."""
    if not _are_alike(expected, value) or value.dtype != expected.dtype:
        return value
    return expected


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
