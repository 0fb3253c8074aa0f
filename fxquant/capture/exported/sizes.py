"""Chooses the sizes that a module is exported with, and finds those that its program has as numbers without need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.capture.copies import copy_of
from fxquant.capture.trace_guards import require_exported

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword inputs."""


def open_sizes(inputs: Any) -> Any:
    """Return, for ``torch.export``, that every size may be another one."""
    shapes = torch.export.ShapesCollection()
    for tensor in pytree.tree_leaves(inputs):
        if isinstance(tensor, Tensor) and tensor.dim():
            shapes[tensor] = dict.fromkeys(range(tensor.dim()), torch.export.Dim.AUTO)
    return shapes


def copies_of(inputs: Inputs) -> Inputs:
    """Return inputs with a copy of each tensor; the same tensor twice is the same copy twice."""
    copies: dict[int, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return copies[id(tensor)]

    found: Inputs = pytree.tree_map_only(Tensor, copied, inputs)
    return found


def without_ones(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs | None:
    """Return inputs on which a module runs, with 2 where the first or the second size is 1: a batch of one, say.

    ``torch.export`` takes a size of 1 for a number, whatever is said of it.

    Args:
        module: It is not changed.
        args: Positional inputs.
        kwargs: Keyword inputs.

    Returns:
        None where no such size is 1, or where the module needs it.
    """
    for dim in (0, 1):
        inputs = _enlarged((args, dict(kwargs)), partial(_ones_at, dim))
        if inputs is not None and _results(module, inputs) is not None:
            return inputs
    return None


def _ones_at(dim: int, tensor: Tensor) -> list[int]:
    return [dim] if tensor.shape[dim : dim + 1] == (1,) else []


def gives_the_same(module: nn.Module, gm: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a graph that was made on other sizes gives what the module gives on these inputs."""
    inputs = args, dict(kwargs)
    expected, got = _results(module, inputs), _results(gm, inputs)
    return expected is not None and got is not None and len(expected) == len(got) and all(map(_is_near, expected, got))


def fixed_sizes(
    gm: GraphModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the conditions of a graph that a size is a number, where the module runs on inputs of another size too.

    Args:
        gm: The graph, with the checks of its inputs.
        module: What it was made of. It is not changed.
        args: Positional inputs of the module.
        kwargs: Keyword inputs.
    """
    given = args, dict(kwargs)
    tensors = [value for value in pytree.tree_leaves(given) if isinstance(value, Tensor)]
    known: dict[tuple[tuple[int, ...], ...], bool] = {}

    def runs_with(dims: Callable[[Tensor], list[int]]) -> bool:
        places = tuple(tuple(dims(tensor)) for tensor in tensors)
        if places not in known:
            inputs = _enlarged(given, dims)
            known[places] = inputs is not None and _results(module, inputs) is not None
        return known[places]

    return tuple(
        condition
        for size, condition in _numbers(gm)
        if any(runs_with(dims) for dims in _others(gm, size, args, kwargs))
    )


def _numbers(gm: GraphModule) -> Iterator[tuple[Node, str]]:
    """Yield the sizes of inputs that are compared with numbers, and the conditions as text."""
    for node in gm.graph.nodes:
        if node.target is require_exported and not isinstance(node.args[1], bool):
            size: Any = node.args[0]
            if isinstance(size, Node) and size.op == "call_method" and size.target == "size":
                yield size, str(node.args[2])


def _others(
    gm: GraphModule, size: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Callable[[Tensor], list[int]]]:
    """Yield ways to enlarge the inputs: that size alone, and all sizes that are the same number."""
    dim: Any = size.args[1]
    names = {node.name: node for node in gm.graph.nodes if node.op == "placeholder"}
    bound = dict(zip(names, args, strict=False)) | {name: kwargs[name] for name in names if name in kwargs}
    source: Any = size.args[0]
    given = bound.get(source.name)
    if not isinstance(given, Tensor):
        return
    number = given.shape[dim]
    yield lambda tensor: [dim] if tensor is given else []
    yield lambda tensor: [place for place, one in enumerate(tensor.shape) if one == number]


def _enlarged(inputs: Inputs, dims: Callable[[Tensor], list[int]]) -> Inputs | None:
    """Return copies of inputs with twice the size in some dimensions; None where these are none."""
    changed = False

    def larger(tensor: Tensor) -> Tensor:
        nonlocal changed
        copied = tensor.detach().clone()
        for dim in dims(tensor):
            copied, changed = torch.cat((copied, copied), dim), True
        return copied

    found: Inputs = pytree.tree_map_only(Tensor, larger, inputs)
    return found if changed else None


def _results(module: nn.Module, inputs: Inputs) -> list[Any] | None:
    """Return what a copy of a module gives; None if it fails."""
    args, kwargs = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), inputs)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            return pytree.tree_leaves(copy_of(module, shares_parameters=True)(*args, **kwargs))
    except Exception:  # whatever the user's code raises says that it does not take these
        return None


def _is_near(expected: Any, got: Any) -> bool:
    if not isinstance(expected, Tensor) or not isinstance(got, Tensor):
        return isinstance(expected, Tensor) == isinstance(got, Tensor)
    same = expected.shape == got.shape and expected.dtype == got.dtype
    return same and torch.allclose(expected, got, rtol=1e-3, atol=1e-5, equal_nan=True)
