"""Quality of a model: signal to noise of its output, or a function of the user's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.utils import _pytree as pytree

from fxquant.errors import InputError, UnknownNameError
from fxquant.graph.inputs import describe_value
from fxquant.measure.noise import decibels, with_error
from fxquant.registry import did_you_mean

Metric = Callable[[Any, Any], Any]

AGAINST = ("float", "target")
"""What a metric of the user's compares the output with."""


def check_metric(metric: object, against: object) -> None:
    """Refuse a metric that is no function, and what it cannot be compared with.

    Raises:
        UnknownNameError: ``against`` is no such thing.
        InputError: ``metric`` is no function, or is not there where a target is to be compared with.
    """
    if against not in AGAINST:
        hint = did_you_mean(str(against), AGAINST)
        raise UnknownNameError(
            "unknown thing to compare with", got=repr(against), expected=", ".join(AGAINST), hint=hint
        )
    if metric is not None and not callable(metric):
        raise InputError("metric is no function", got=describe_value(metric), expected="metric(output, expected)")
    if metric is None and against == "target":
        raise InputError(
            "the default metric compares with the float model", got="against='target'", hint="give a metric"
        )


Numbers = Sequence[Sequence[float]]
"""What one batch adds to a score, as JSON can hold it."""


class Score(Protocol):
    """Takes one batch after the other, and answers with the metric over all of them."""

    batches: int

    def measure(self, output: Any, expected: Any) -> Numbers:
        """Return what one batch adds, for ``fold``."""

    def fold(self, found: Numbers) -> None:
        """Count one batch, which ``measure`` has measured, here or in another process."""

    def add(self, output: Any, expected: Any) -> None:
        """Count one batch."""

    @property
    def value(self) -> float:
        """Return the metric."""

    def cost(self, ideal: float) -> float:
        """Return how much worse it is than the float model's, whose metric is ``ideal``."""


@dataclass(slots=True)
class SignalToNoise:
    """Sums up signal and noise of all tensors of floats in the output together, by the rules of ``sqnr``, in dB."""

    signal: float = 0.0
    noise: float = 0.0
    batches: int = 0

    def add(self, output: Any, expected: Any) -> None:
        self.fold(self.measure(output, expected))

    def measure(self, output: Any, expected: Any) -> Numbers:
        pairs = list(zip(_floats(output), _floats(expected), strict=True))
        if not pairs:
            raise InputError(
                "the model's output holds no float values, so there is no signal to noise of it",
                got=describe_value(expected),
                expected="a tensor of floats, alone or in a structure",
                hint="give a metric, one that compares classes, say",
            )
        errors = (with_error(want, got) for got, want in pairs)
        return [(float(exact.square().sum()), float(error.square().sum())) for exact, _, error in errors]

    def fold(self, found: Numbers) -> None:
        for signal, noise in found:
            self.signal += signal
            self.noise += noise
        self.batches += 1

    @property
    def value(self) -> float:
        return decibels(self.signal, self.noise) if self.batches else math.nan

    def cost(self, ideal: float) -> float:
        if self.noise == 0:
            return 0.0
        return self.noise / self.signal if self.signal > 0 else math.inf


@dataclass(slots=True)
class Average:
    """The mean of a function of the user's over batches, each weighted with its size."""

    metric: Metric
    higher_is_better: bool
    total: float = 0.0
    weight: int = 0
    batches: int = 0

    def add(self, output: Any, expected: Any) -> None:
        self.fold(self.measure(output, expected))

    def measure(self, output: Any, expected: Any) -> Numbers:
        size = next((len(x) for x in pytree.tree_leaves(output) if isinstance(x, Tensor) and x.dim()), 1)
        found = self.metric(output, expected)
        try:
            number = float(found)
        except (TypeError, ValueError) as error:
            raise InputError(
                "metric gave no number", got=describe_value(found), expected="a number, or a tensor of one"
            ) from error
        return [(number, size)]

    def fold(self, found: Numbers) -> None:
        for number, size in found:
            self.total += number * size
            self.weight += int(size)
        self.batches += 1

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else math.nan

    def cost(self, ideal: float) -> float:
        return ideal - self.value if self.higher_is_better else self.value - ideal


def _floats(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
