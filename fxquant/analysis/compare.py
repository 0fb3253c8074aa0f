"""Compares a quantized model with its float model, layer by layer: each alone, and with all that came before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.analysis.comparison import Comparison, LayerComparison, Unmatched, sorted_by_harm
from fxquant.analysis.comparison_points import ComparisonPoint, ComparisonPoints, comparison_points
from fxquant.analysis.float_reference import check_float_model, float_graph, quantized_graph
from fxquant.analysis.inputs import batches_of
from fxquant.analysis.suspects import cause_of, fault_of
from fxquant.errors import InputError, error_context
from fxquant.graph.inputs import bind
from fxquant.graph.shapes import unchanged_state
from fxquant.measure.noise import DeviationSums
from fxquant.measure.parity import plan_of
from fxquant.measure.runner import Stepper, ValuesOnDemand, as_taken, first_tensor
from fxquant.quantizer.quantizer import Quantizer


def compare(
    float_model: nn.Module | Quantizer,
    quantized_model: nn.Module,
    data: Iterable[Any],
    *,
    num_batches: int | None = None,
    progress: bool = True,
) -> Comparison:
    """Find the layer that spoils a quantized model: each layer alone, and with all that came before it.

    Both models run side by side, a node at a time. Of every layer sums are kept, not values: memory does not grow with
    the number of batches, and holds about what one batch needs in each model.

    Args:
        float_model: The model that was quantized; or what :func:`prepare` gave of it; or the model of
            :func:`prepare_qat`, which is then run without its roundings.
        quantized_model: What :func:`convert` gave, to whatever, from :func:`prepare` or :func:`prepare_qat`, also if it
            was pickled and loaded since; or the model of :func:`prepare_qat` itself, as it would be converted.
        data: Yields batches, as for :func:`calibrate`.
        num_batches: Stop after so many.
        progress: Show a progress bar.

    Returns:
        A table of the layers, the most harmful first. A layer that differs from the float model by more than rounding
        explains (other weights, a scale that its readers do not know) comes before all others, and is told so.
        An interrupt gives what was measured until then.

    Raises:
        InputError: a model is of the wrong kind, no layer of one is found in the other (the message says which, and
            why), or a batch does not run.
        CalibrationError: ``data`` holds no batch.

    Example:
        >>> import torch, fxquant
        >>> _ = torch.manual_seed(7)
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
        >>> data = [torch.randn(16, 8)]
        >>> int8 = fxquant.quantize(model, data, progress=False)
        >>> found = compare(model, int8, data, progress=False)
        >>> sorted(row.name for row in found), found.worst(1)[0].fault
        (['0', '2', 'input_1'], '')
    """
    check_float_model(float_model)
    quantized = quantized_graph(quantized_model)
    example, batches = batches_of(data, quantized, num_batches=num_batches, progress=progress, what="compare")
    floats = float_graph(float_model, quantized, *example)
    points = comparison_points(quantized, plan_of(quantized), floats)
    if not points.by_node:
        raise InputError(
            "no layer of the quantized model is found in the float model",
            got="\n            ".join(f"{each.unit}: {each.reason}" for each in points.unmatched[:10]) or "no unit",
            expected="the model that was quantized",
            hint="compare(prepared, …) takes the graph that prepare made, in place of the float model",
        )
    run = _Run(floats, quantized, points)
    with torch.no_grad(), unchanged_state(floats), unchanged_state(quantized):
        try:
            for index, (args, kwargs) in enumerate(batches):
                with error_context(f"batch {index}"):
                    run.add(args, kwargs)
        except KeyboardInterrupt:
            if not run.batches:
                raise
    return run.result()


class _Run:
    """Three runs side by side: the float model; the quantized one; and the quantized one on the float model's values.

    In the third, every value is replaced by that of the float model, rounded as the layers that read it expect, as
    soon as it has been measured: so nothing accumulates.
    """

    def __init__(self, floats: GraphModule, quantized: GraphModule, points: ComparisonPoints) -> None:
        self._floats, self._quantized, self._points = floats, quantized, points
        self._alone = {point: DeviationSums() for point in points.by_node.values()}
        self._here = {point: DeviationSums() for point in points.by_node.values()}
        self._weight = {point: DeviationSums() for point in points.by_node.values()}
        """Of each unit's result, with nothing but its weight quantized."""
        self._output = DeviationSums()
        self._other: dict[ComparisonPoint, str] = {}
        """Points that turned out to hold values of another kind in the two models -> how."""
        self.batches = 0

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Measure one batch."""
        floats, points = self._floats, self._points
        demand: Counter[Node] = Counter()
        for point in points.by_node.values():
            demand.update(point.reads)
        demand.update(points.replaced.values())
        exact = ValuesOnDemand(floats, bind(floats, args, kwargs, "this batch"), demand)
        bound = as_taken(self._quantized, bind(self._quantized, args, kwargs, "this batch"))
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
            if node.op == "output":
                expected = exact.look(next(n for n in floats.graph.nodes if n.op == "output"))
                for want, got in zip(*(_tensors(v) for v in (expected, value)), strict=False):
                    if want.shape == got.shape:
                        self._output.add(want, got, -1)
        self.batches += 1

    def _measure(self, point: ComparisonPoint, value: Any, isolated: Any, exact: ValuesOnDemand) -> Any:
        """Add up one layer, and answer with what stands for the float model's value in its place."""
        whole = exact.look(point.source)
        expected, result = first_tensor(whole), first_tensor(point.dequantized(value))
        alike = _are_alike(expected, result)
        replaced = point.stored_form(whole, isolated) if alike or not isinstance(expected, Tensor) else isolated
        if alike and point not in self._other:
            given, with_weight = map(first_tensor, point.given(exact.look))
            axis = point.channel_axis(expected)
            if with_weight is not None:
                self._weight[point].add(given, with_weight, axis)
            self._here[point].add(expected, result, axis)
            self._alone[point].add(given, first_tensor(point.dequantized(isolated)), axis)
            point.clipping.look(given, point.qparams)
        elif isinstance(expected, Tensor) and isinstance(result, Tensor):
            self._other[point] = f"its value is {list(result.shape)}, that of the float model {list(expected.shape)}"
        for node in point.reads:
            exact.done_with(node)
        return replaced

    def result(self) -> Comparison:
        """Return what was measured so far."""
        rows = []
        for index, (node, point) in enumerate(self._points.by_node.items()):
            alone, here = self._alone[point], self._here[point]
            if point in self._other or not len(here.signal) or (point.keeps_values and not float(alone.noise.sum())):
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
                    cause=cause_of(point, alone, self._weight[point]),
                    overrun=alone.total_lost,
                )
            )
        other = tuple(Unmatched(point.name, reason) for point, reason in self._other.items())
        unmatched, numbers = self._points.unmatched + other, len(self._output.signal) > 0
        return Comparison(sorted_by_harm(rows), self._output.result(), self.batches, unmatched, numbers)


def _are_alike(expected: Any, result: Any) -> bool:
    return isinstance(expected, Tensor) and isinstance(result, Tensor) and expected.shape == result.shape


def _in_place_of(value: Any, expected: Any) -> Any:
    """Return the float model's value, where it is of the same kind as the quantized model's."""
    if not _are_alike(expected, value) or value.dtype != expected.dtype:
        return value
    return expected


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
