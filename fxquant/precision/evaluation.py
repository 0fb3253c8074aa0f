"""Runs whole models over the data: their noise, and a metric of the user's with its paired interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fxquant.analysis.metrics import Metric, SignalToNoise
from fxquant.distributed.shared_numbers import shared_map
from fxquant.errors import InputError, error_context
from fxquant.graph.inputs import describe_value
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.shapes import unchanged_state
from fxquant.measure.paired import PairedDifference, paired_difference
from fxquant.measure.runner import FloatRun, OrderedNodes

SAME = 1e-6
"""Relative: the mean of a metric over single items that is nearer to that of the batch counts as the same."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one model over all data."""

    noise: float
    """Noise over signal of the output, against the float model."""
    sqnr: float
    """The same in dB."""
    loss: PairedDifference | None
    """How much worse the metric is than that of the float model; None without a metric."""


@dataclass(slots=True)
class Evaluation:
    """Compares models with the float model on the same batches.

    Args:
        simulated: A simulation, which without its roundings is the float model.
        inputs: Of each batch, by name.
        targets: What a metric against the target compares with, batch by batch; empty: with the float model's output.
        metric: A function of the user's, or None.
        higher_is_better: Of the metric.
        confidence: Of intervals.
        seed: Of what is drawn at random.
    """

    simulated: GraphModule
    inputs: Sequence[Mapping[str, Any]]
    targets: Sequence[Any]
    metric: Metric | None
    higher_is_better: bool
    confidence: float
    seed: int
    outputs: list[Any] = field(init=False)
    """Of the float model, batch by batch."""
    _float: list[_Values] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.outputs = [
            self._run(self.simulated, bound, index, rounded=False) for index, bound in enumerate(self.inputs)
        ]
        if not _floats(self.outputs[0]):
            raise InputError(
                "the model's output holds no float values, whose noise the search adds up",
                got=describe_value(self.outputs[0]),
                expected="a tensor of floats, alone or in a structure",
                hint="prepare the model that gives the values before they are rounded to classes",
            )
        if not any(bool(leaf.isfinite().any()) for output in self.outputs for leaf in _floats(output)):
            raise InputError(
                "the model's output holds no finite values, whose noise the search adds up",
                got=describe_value(self.outputs[0]),
                expected="finite values in at least one batch",
                hint="look at the data, and at the weights of the model",
            )
        if self.metric is not None:
            self._float = [self._values(index, output) for index, output in enumerate(self.outputs)]
            self._refuse_constant()

    def measure(self, simulated: GraphModule) -> Measured:
        """Run a model over all data."""
        score = SignalToNoise()
        values: list[_Values] = []

        def of_batch(index: int) -> Any:
            output = self._run(simulated, self.inputs[index], index, rounded=True)
            found = None if self.metric is None else self._values(index, output)
            return score.measure(output, self.outputs[index]), found and (found.value, found.size, found.items)

        for numbers, found in shared_map("the noise of a whole model", len(self.inputs), of_batch):
            score.fold(numbers)
            if found is not None:
                values.append(_Values(*found))
        noise = score.noise / score.signal if score.signal > 0 else math.inf
        return Measured(noise if score.noise else 0.0, score.value, self._loss(values) if values else None)

    def _run(self, gm: GraphModule, bound: Mapping[str, Any], index: int, *, rounded: bool) -> Any:
        run = (BoundInterpreter if rounded else FloatRun)(gm, bound)
        with torch.no_grad(), torch.random.fork_rng(), unchanged_state(gm), error_context(f"batch {index}"):
            return OrderedNodes(list(gm.graph.nodes), self.seed).advance(run, {}, 0, len(gm.graph.nodes))

    def _expected(self, index: int) -> Any:
        return self.targets[index] if self.targets else self.outputs[index]

    def _values(self, index: int, output: Any) -> _Values:
        """Return the metric of a batch, and of each of its items alone, where their mean is that of the batch."""
        assert self.metric is not None  # the caller asked
        expected = self._expected(index)
        value = _number(self.metric(output, expected), f"batch {index}")
        size = max(1, next((len(leaf) for leaf in _tensors(output) if leaf.dim()), 1))
        items = _items(self.metric, output, expected, size)
        if items is None or abs(math.fsum(items) / size - value) > SAME * max(1.0, abs(value)):
            return _Values(value, size, None)
        return _Values(value, size, items)

    def _loss(self, values: Sequence[_Values]) -> PairedDifference:
        pairs = (self._float, values) if self.higher_is_better else (values, self._float)
        if all(each.items is not None for each in (*self._float, *values)):
            first, second = ([x for each in side for x in each.items or ()] for side in pairs)
            return paired_difference(first, second, self.confidence)
        first, second = ([each.value for each in side] for side in pairs)
        return paired_difference(first, second, self.confidence, weights=[each.size for each in values])

    def _refuse_constant(self) -> None:
        """Refuse a metric that has one value for any output: those of 0 and of the other sign are tried, too."""
        assert self.metric is not None  # the caller asked
        seen = {each.value for each in self._float}
        for index, output in enumerate(self.outputs):
            for factor in (0, -1):
                seen.add(_number(self.metric(_scaled(output, factor), self._expected(index)), f"batch {index}"))
        if len(seen) == 1:
            raise InputError(
                "batch 0: metric gave the same value for any output",
                got=repr(next(iter(seen))),
                expected="a value that depends on the output",
            )


@dataclass(frozen=True, slots=True)
class _Values:
    """The metric of one batch."""

    value: float
    size: int
    items: list[float] | None
    """Of each item alone; None where it is no mean over items."""


def _number(found: Any, what: str) -> float:
    """Return what a metric gave as a number.

    Raises:
        InputError: it is none, or not finite; the message names the batch and the value.
    """
    expected = "a finite number, or a tensor of one"
    if isinstance(found, Tensor) and found.numel() != 1:
        raise InputError(f"{what}: metric gave a tensor", got=describe_value(found), expected=expected)
    try:
        number = float(found)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: metric gave no number", got=describe_value(found), expected=expected) from error
    if not math.isfinite(number):
        raise InputError(f"{what}: metric gave a value that is not finite", got=repr(number), expected=expected)
    return number


def _items(metric: Metric, output: Any, expected: Any, size: int) -> list[float] | None:
    """Return the metric of each item of a batch alone; None where single items cannot be given to it."""

    def item(value: Any, index: int) -> Any:
        return pytree.tree_map_only(Tensor, lambda x: x[index : index + 1] if x.dim() and len(x) == size else x, value)

    try:
        found = [float(metric(item(output, index), item(expected, index))) for index in range(size)]
    except Exception:  # it is the user's, and need not take one item: the batch counts as a whole then
        return None
    return found if all(map(math.isfinite, found)) else None


def _scaled(value: Any, factor: int) -> Any:
    """Return an output with its floats multiplied by a number."""
    return pytree.tree_map_only(Tensor, lambda x: x * factor if x.is_floating_point() else x, value)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _floats(value: Any) -> list[Tensor]:
    return [leaf for leaf in _tensors(value) if leaf.is_floating_point()]
