"""Runs the float graph over data, and shows every planned tensor to its observer."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset
from tqdm import tqdm

from fxquant.calibration.range_history import FEWEST_BATCHES
from fxquant.errors import CalibrationError, InputError, warn, within
from fxquant.graph.inputs import describe_call, describe_value, how_to_tensor, keywords_of
from fxquant.graph.query import INPLACE, has_hooks
from fxquant.graph.shapes import BoundInterpreter

IN_PLACE: dict[Any, Callable[..., Tensor]] = {
    F.relu: torch.relu_,
    F.relu6: lambda x: F.hardtanh_(x, 0.0, 6.0),
    F.hardtanh: F.hardtanh_,
    torch.add: Tensor.add_,
}
"""How to run again in place what the user wrote in place, and ``normalize`` made out-of-place."""


MOST_BATCHES = 1000
"""Where ``until_stable`` ends at the latest, unless ``num_batches`` says otherwise."""


class CalibrationInterpreter(BoundInterpreter):
    """Runs a graph node by node, and hands values to observers as they appear.

    The graph is the float graph, untouched: what comes out is what the model gives, to the bit. A value is freed after
    its last use, so memory does not grow with the number of batches.

    Args:
        gm: The prepared float graph.
        bound: Its inputs, by name.
        observers: Name of a node -> the observers that see its value.
        handlers: Root of a unit -> the user's handler, whose ``observe(node, env)`` is called.
    """

    def __init__(
        self,
        gm: GraphModule,
        bound: Mapping[str, Any],
        observers: Mapping[str, Sequence[nn.Module]],
        handlers: Mapping[str, Any],
    ) -> None:
        super().__init__(gm, bound)
        self._observers = observers
        self._handlers = handlers

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        with within(at=n):
            for observer in self._observers.get(n.name, ()):
                observer(result)
        if n.name in self._handlers:
            self._handlers[n.name].observe(n, Values({**self.env, n: result}))
        return result

    def compute(self, n: Node) -> Any:
        return self._in_place(n) if n.meta.get(INPLACE) and self._may_overwrite(n) else super().compute(n)

    def _may_overwrite(self, n: Node) -> bool:
        """The caller's tensors and the model's parameters are never written to."""
        source = n.args[0]
        return n.target in IN_PLACE and isinstance(source, Node) and source.op not in ("placeholder", "get_attr")

    def _in_place(self, n: Node) -> Any:
        args, _ = self.fetch_args_kwargs_from_env(n)
        if n.target is torch.add and (n.kwargs or not _same_kind(args[0], args[1])):
            return super().compute(n)
        return IN_PLACE[n.target](*args)


def _same_kind(a: Any, b: Any) -> bool:
    return isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype


class Values(Mapping[Any, Any]):
    """Shows a handler the values of a run under their nodes, or under the names of these."""

    def __init__(self, env: Mapping[Node, Any]) -> None:
        self._values = {node.name: value for node, value in env.items()}

    def __getitem__(self, key: Node | str) -> Any:
        return self._values[key if isinstance(key, str) else key.name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def run_with_hooks(gm: GraphModule, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call ``run`` as if it were the forward of ``gm``: with the hooks that the user registered on the whole model."""
    if not has_hooks(gm):
        return run(*args, **kwargs)

    class Hooked(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return run(*args, **kwargs)

    stand_in = object.__new__(Hooked)
    stand_in.__dict__ = gm.__dict__  # hooks that look at the module see the model
    return nn.Module.__call__(stand_in, *args, **kwargs)


def check_like_example(bound: Mapping[str, Any], example: Mapping[str, Any], what: str) -> None:
    """Refuse inputs that lack a tensor that the example inputs held, or hold something else in its place.

    Raises:
        InputError: the message names the argument.
    """
    for name, value in example.items():
        if isinstance(value, Tensor) and not isinstance(bound.get(name), Tensor):
            raise InputError(
                f"{what} hold no tensor for the argument {name!r}",
                got=describe_value(bound.get(name)),
                expected=describe_value(value),
                hint="inputs must bind the same arguments as the example inputs that prepare was given",
            )


def batches(
    data: Iterable[Any],
    example_args: Sequence[Any],
    model: nn.Module,
    *,
    num_batches: int | None = None,
    progress: bool = True,
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The inputs in each item of ``data``, as positional and keyword arguments; with a progress bar.

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


def say_where_it_stopped(stable: bool, batches: int, progress: bool) -> None:
    """Tell what ``until_stable`` came to: a line beside the progress bar, or a warning."""
    if not stable:
        if batches < FEWEST_BATCHES:  # else those that still moved are warned of by name
            warn(
                "calibration data ended before it could be told whether the ranges have settled",
                got=f"{batches} batches",
                expected=f"at least {FEWEST_BATCHES}",
            )
        return
    text = f"all ranges have settled: calibration stopped after {batches} batches"
    logging.getLogger("fxquant").info(text)
    if progress:
        tqdm.write(text, file=sys.stderr)


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
    batch: Any, example_args: Sequence[Any], what: str, model: nn.Module
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The model's inputs in one batch of an ordinary data loader.

    Args:
        batch: A tensor; a dict of keyword inputs, of which those are used that the model takes; or a tuple or list, of
            which as many leading elements as ``example_args`` has are used: labels do no harm.
        example_args: The positional example inputs.
        what: Name of the batch, for messages.
        model: Whose signature says what it takes.

    Raises:
        InputError: too few elements, or elements of another kind than the example's.
    """
    if isinstance(batch, Mapping):
        return (), keywords_of(batch, model, what)
    items = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    expected = describe_call(tuple(example_args), {})
    if len(items) < len(example_args):
        raise InputError(f"{what} holds too few inputs", got=describe_value(batch), expected=expected)
    args = items[: len(example_args)]
    for position, (value, example) in enumerate(zip(args, example_args, strict=True)):
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
