"""The inputs of a model: how they bind to its signature, and how they read in a message."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from fxquant.errors import InputError

LONGEST_LIST = 4


def signature_of(model: nn.Module) -> inspect.Signature:
    """The signature of ``forward``, without ``self``."""
    return inspect.signature(model.forward)


def bind(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Argument name -> value, as calling ``model(*args, **kwargs)`` would bind them, with the defaults filled in.

    Args:
        model: Any module, traced or not.
        args: Positional inputs.
        kwargs: Keyword inputs.
        what: What they are, for the message: ``"the example inputs"``, ``"batch 3"``.

    Raises:
        InputError: they do not fit the signature; the message shows both.
    """
    signature = signature_of(model)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"{what} do not fit the model's forward: {error}",
            got=describe_call(args, kwargs),
            expected=f"{type(model).__name__}.forward{signature}",
            hint="example_inputs is the tuple of positional inputs, example_kwargs the dict of keyword inputs",
        ) from error
    bound.apply_defaults()
    return dict(bound.arguments)


def bind_example(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """``bind`` for the example inputs.

    Raises:
        InputError: as ``bind``, or ``args`` is no tuple.
    """
    if not isinstance(args, tuple):
        raise InputError(
            "the example inputs are no tuple",
            got=describe_value(args),
            expected="a tuple of the positional inputs: (x,)",
        )
    return bind(model, args, kwargs, "the example inputs")


def describe_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Arguments as a reader needs them: shapes and dtypes of tensors, not their values."""
    parts = [describe_value(value) for value in args]
    parts += [f"{name}={describe_value(value)}" for name, value in kwargs.items()]
    return f"({', '.join(parts)})"


def describe_value(value: Any) -> str:
    """A value in a few words: ``float32[2, 3, 8, 8]``."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, torch.Size):
        return repr(tuple(value))
    if isinstance(value, (list, tuple)):
        inner = ", ".join(describe_value(item) for item in value[:LONGEST_LIST])
        more = ", …" if len(value) > LONGEST_LIST else ""
        return f"[{inner}{more}]" if isinstance(value, list) else f"({inner}{more}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        items = list(value.items())[:LONGEST_LIST]
        return "{" + ", ".join(f"{key}: {describe_value(item)}" for key, item in items) + "}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value) if len(repr(value)) <= 40 else f"{type(value).__name__} of length {len(repr(value))}"
    return f"a {type(value).__name__}"


def does_not_run(error: Exception, node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InputError:
    """What to raise where a node of the model fails on the values of a batch.

    Args:
        error: What it raised.
        node: The one that failed.
        args, kwargs: What it was called with.
    """
    return InputError(
        f"this batch does not run through the model: {error}",
        at=node,
        got=describe_call(args, kwargs),
        hint="batches must be inputs that the model itself can run on",
    )


def is_given(node: Node) -> bool:
    """Whether a node is an input, or picks an item of one that is a dict, a tuple or the like."""
    source: Any = node.args[0] if node.target is operator.getitem else None
    return node.op == "placeholder" or (isinstance(source, Node) and is_given(source))


def spelled(node: Node) -> str:
    """``batch['mask']``."""
    if node.target is not operator.getitem:
        return str(node.target).lstrip("*") if node.op == "placeholder" else node.name
    source: Any = node.args[0]
    return f"{spelled(source)}[{node.args[1]!r}]"
