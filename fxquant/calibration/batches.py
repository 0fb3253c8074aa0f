"""Reads batches: the inputs of a model in what a data loader yields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset
from tqdm import tqdm

from fxquant.errors import CalibrationError, InputError
from fxquant.graph.inputs import (
    describe_call,
    describe_value,
    how_to_tensor,
    keywords_of,
    needed_inputs,
    not_dense,
    signature_of,
)
from fxquant.graph.query import is_strided


def batches(
    data: Iterable[Any],
    example_args: Sequence[Any] | None,
    model: nn.Module,
    *,
    num_batches: int | None = None,
    progress: bool = True,
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield the inputs in each item of ``data``, as positional and keyword arguments; with a progress bar.

    Raises:
        InputError: ``data`` is no iterable of batches, or a batch does not hold what the example inputs hold.
        CalibrationError: there is no batch at all, or none with a sample in it.
    """
    check_iterable(data)
    total = expected_batches(data, num_batches)
    index, found = -1, False
    bar = tqdm(islice(data, num_batches), desc="calibrate", total=total, unit="batch", disable=not progress)
    for index, item in enumerate(bar):
        batch = inputs_of(item, example_args, f"calibration batch {index}", model)
        found = found or holds_values(batch)
        yield batch
    if index < 0:
        raise CalibrationError("there is no calibration data", got="no batch", expected="at least one batch")
    if not found:
        got, expected = f"{index + 1} batches of zero samples", "at least one batch with a sample in it"
        raise CalibrationError("the calibration data holds no values", got=got, expected=expected)


def holds_values(batch: Any) -> bool:
    """Tell whether a batch has anything in it: no tensor, or one that is not empty."""
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    return not tensors or any(tensor.numel() for tensor in tensors)


def check_iterable(data: object) -> None:
    """Refuse what is no iterable of batches, and a lone batch, whose rows would be taken for batches.

    Raises:
        InputError: it is one of these.
    """
    array = hasattr(data, "__array_interface__")
    if isinstance(data, Iterable) and not isinstance(data, (Tensor, str, Mapping)) and not array:
        return
    hint = "[torch.from_numpy(array)] is a list of one batch" if array else "[batch] is a list of one batch"
    if isinstance(data, Dataset):
        hint = "torch.utils.data.DataLoader(dataset, batch_size=32) yields batches of a data set"
    raise InputError(
        "calibration data must be an iterable of batches",
        got=describe_value(data),
        expected="a DataLoader, a list, a generator: anything that yields batches",
        hint=hint,
    )


def expected_batches(data: Iterable[Any], num_batches: int | None) -> int | None:
    """Return how many batches of ``data`` are used at most; None where only the end of the data tells.

    Raises:
        InputError: ``num_batches`` is no number of batches.
    """
    if num_batches is not None and (type(num_batches) is not int or num_batches < 1):
        raise InputError(
            "num_batches is no number of batches",
            got=describe_value(num_batches),
            expected="1 or more, or None for all that the data holds",
            hint="leave num_batches out to use all batches",
        )
    try:
        total = len(data) if isinstance(data, Sized) else None
    except TypeError:  # a DataLoader has a length where its data set has one
        total = None
    return total if num_batches is None else min(num_batches, num_batches if total is None else total)


def inputs_of(
    batch: Any, example_args: Sequence[Any] | None, what: str, model: nn.Module
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the model's inputs in one batch of an ordinary data loader.

    Args:
        batch: A tensor; a dict of keyword inputs, of which those are used that the model takes; or a tuple or list, of
            which as many leading elements as ``example_args`` has are used: labels do no harm.
        example_args: The positional example inputs. None: as many elements are used as ``forward`` needs.
        what: Name of the batch, for messages.
        model: Whose signature says what it takes.

    Raises:
        InputError: too few elements, or elements of another kind than the example's.
    """
    if isinstance(batch, Mapping):
        return (), keywords_of(batch, model, what)
    items = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    if example_args is None:
        return items[: needed_inputs(model)], {}
    expected = describe_call(tuple(example_args), {})
    if len(items) < len(example_args):
        raise InputError(f"{what} holds too few inputs", got=describe_value(batch), expected=expected)
    args = items[: len(example_args)]
    names = list(signature_of(model).parameters)
    for position, (value, example) in enumerate(zip(args, example_args, strict=True)):
        if isinstance(value, Tensor) and isinstance(example, Tensor) and is_strided(example) and not is_strided(value):
            name = names[position] if position < len(names) else f"inputs[{position}]"
            raise not_dense(name, value, describe_value(example)).within(what)
        if _kind(value) != _kind(example):
            hint = "batches must look like the example inputs that prepare was given; their size may differ"
            raise InputError(
                f"{what} is of the wrong kind (input {position})",
                got=describe_value(value),
                expected=describe_value(example),
                hint=how_to_tensor(value) or hint,
            )
    return args, {}


def _kind(value: Any) -> Any:
    """Return what has to be the same: that it is a tensor, and whether of floats; for anything else the type."""
    return ("tensor", value.is_floating_point()) if isinstance(value, Tensor) else type(value)
