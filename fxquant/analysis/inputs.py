"""Batches for a model that is there already: as many leading elements of each as the model takes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from torch.fx import GraphModule, Node
from tqdm import tqdm

from fxquant.calibration.batches import check_iterable, expected_batches, inputs_of
from fxquant.capture.trace_guards import require_value
from fxquant.errors import CalibrationError, InputError
from fxquant.graph.inputs import describe_value

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword inputs."""


def batches_of(
    data: Iterable[Any], model: GraphModule, *, num_batches: int | None = None, progress: bool, what: str
) -> tuple[Call, Iterator[Call]]:
    """Yield the first batch, and all of them, the first too, with a progress bar.

    Args:
        data: As for ``calibrate``.
        model: Its placeholders say how many elements of a batch are inputs.
        num_batches: Stop after so many.
        progress: Whether to show the bar.
        what: Its name.

    Raises:
        InputError: ``data`` is no iterable of batches, or a batch is of another kind than the first.
        CalibrationError: there is no batch.
    """
    check_iterable(data)
    total = expected_batches(data, num_batches)
    items = islice(data, num_batches)
    first = next(items, None)
    if first is None:
        raise CalibrationError(f"there is no data to {what} on", got="no batch", expected="at least one batch")
    example = () if isinstance(first, Mapping) else _items(first)[: taken(model)]

    def calls() -> Iterator[Call]:
        bar = tqdm(chain([first], items), desc=what, total=total, unit="batch", disable=not progress)
        for index, item in enumerate(bar):
            yield inputs_of(item, example, f"batch {index}", model)

    return inputs_of(first, example, "batch 0", model), calls()


def taken(model: GraphModule) -> int:
    """Count the positional inputs that a model takes: an argument with a default counts where the graph reads it."""
    inputs = [node for node in model.graph.nodes if node.op == "placeholder"]
    if any(str(node.target).startswith("*") for node in inputs):
        return sys.maxsize
    needed = [place for place, node in enumerate(inputs, 1) if not node.args or any(map(_reads, node.users))]
    return max(needed, default=1)


def target_of(batch: Any, inputs: int, what: str) -> Any:
    """Return what a batch holds behind its inputs: one thing, or a tuple of several.

    Args:
        batch: As a data loader yields it.
        inputs: The number of positional inputs.
        what: Name of the batch, for messages.

    Raises:
        InputError: there is nothing behind them.
    """
    rest = () if isinstance(batch, Mapping) or not isinstance(batch, (tuple, list)) else tuple(batch[inputs:])
    if not rest:
        raise InputError(
            f"{what} holds no target",
            got=describe_value(batch),
            expected=f"{inputs} inputs, and the target behind them",
        )
    return rest[0] if len(rest) == 1 else rest


def _reads(user: Node) -> bool:
    """Tell whether a node computes with what it is given, and does not only see to it that it is the default."""
    return user.target is not require_value


def _items(batch: Any) -> Sequence[Any]:
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
