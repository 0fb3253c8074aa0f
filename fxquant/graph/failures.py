"""What to say where a node of a graph fails on values that it was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import Node

from fxquant.errors import InputError
from fxquant.graph.inputs import describe_call
from fxquant.graph.query import canonical_type, module_of

_SIZES = (
    ("in_channels", "input channels"),
    ("in_features", "input features (the last dimension)"),
    ("num_features", "channels"),
)
"""Attribute of a layer -> what it counts."""

_OVERLOADS = ", but expected one of:"
"""What torch writes before a list of all the ways to call a function."""


def not_running(
    node: Node, module: nn.Module | None, error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> InputError:
    """The error to raise where ``node`` (which calls ``module``, if it calls one) fails on the example."""
    return InputError(
        f"the example inputs do not run through the model: {first_line(error)}",
        at=node,
        got=describe_call(args, kwargs),
        expected=expectation(module),
        hint="example_inputs (--input of a command) must be inputs that the model itself can run on",
    )


def does_not_run(error: Exception, node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InputError:
    """The error to raise where a node of the model fails on the values of a batch.

    Args:
        error: What it raised.
        node: The one that failed.
        args, kwargs: What it was called with.
    """
    return InputError(
        f"this batch does not run through the model: {first_line(error)}",
        at=node,
        got=describe_call(args, kwargs),
        expected=expectation(module_of(node)),
        hint="batches must be inputs that the model itself can run on",
    )


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its class where it has none; without the head of a list that is cut off."""
    text = str(error).strip()
    return text.splitlines()[0].removesuffix(_OVERLOADS) if text else type(error).__name__


def expectation(module: Any) -> str | None:
    """What a module takes, where that is easy to say."""
    kind = None if module is None else _kind_of(module)
    found = [f"{kind} with {getattr(module, name)} {noun}" for name, noun in _SIZES if hasattr(module, name)]
    return found[0] if kind is not None and found else None


def _kind_of(module: nn.Module) -> str | None:
    """The class that says what a module computes: one of ``torch.nn``, or one of this package."""
    kind = canonical_type(module)
    if kind is None and type(module).__module__.startswith("fxquant."):
        kind = type(module)
    return None if kind is None else kind.__name__
