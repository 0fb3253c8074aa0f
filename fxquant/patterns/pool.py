"""Pools, means, sums and maxima. A maximum selects values and keeps its input's qparams; an average makes new ones."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fxquant.graph.query import function_name
from fxquant.patterns.pattern import Output, Pattern, Reject, op, tensor

EXTREMES = (torch.max, "max", torch.min, "min")


def no_dtype(captures: Mapping[str, Node]) -> Reject | None:
    node = captures["mean"]
    if node.kwargs.get("dtype") is not None:
        return Reject(f"dtype is given: the {function_name(node.target)} is wanted in another precision", node)
    return None


def of_everything(captures: Mapping[str, Node]) -> Reject | None:
    """Along a dimension, ``torch.max`` gives positions too."""
    node = captures["pick"]
    if len(node.args) + len(node.kwargs) == 1:
        return None
    return Reject("it also gives the positions, which have no qparams; amax and amin do not", node)


def values_alone(captures: Mapping[str, Node]) -> Reject | None:
    """``x.max(1)[0]`` and ``x.max(1).values``, where nobody takes the positions."""
    taken: Any = captures["item"].args[1]
    dim = _dim_of(captures["pick"])
    if taken in (0, "values") and isinstance(dim, int):
        return None
    return Reject("it takes the positions of the values, which have no qparams", captures["item"])


def _dim_of(node: Node) -> Any:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")


EXTREME = op(*EXTREMES)(tensor("x")).named("pick")

VALUES = op(operator.getitem, getattr)(EXTREME).named("item")

MAXIMA = (
    Pattern("max_pool1d", op(F.max_pool1d)(tensor("x")), output=Output.PICKED),
    Pattern("max_pool3d", op(F.max_pool3d)(tensor("x")), output=Output.PICKED),
    Pattern("adaptive_max_pool1d", op(F.adaptive_max_pool1d)(tensor("x")), output=Output.PICKED),
    Pattern("adaptive_max_pool2d", op(F.adaptive_max_pool2d)(tensor("x")), output=Output.PICKED),
    Pattern("adaptive_max_pool3d", op(F.adaptive_max_pool3d)(tensor("x")), output=Output.PICKED),
)
"""Functions of the same arguments run these on quantized values."""

EXTREMA = (
    Pattern("amax", op(torch.amax, "amax", torch.amin, "amin")(tensor("x")), output=Output.PICKED),
    Pattern("max", EXTREME, output=Output.PICKED, check=of_everything),
)
"""These run as they are."""

POOL = (
    Pattern("max_values", VALUES, output=Output.PICKED, check=values_alone),
    *EXTREMA,
    *MAXIMA,
    Pattern("max_pool2d", op(F.max_pool2d)(tensor("x")).named("pool"), output=Output.PICKED),
    Pattern("avg_pool1d", op(F.avg_pool1d)(tensor("x")).named("pool")),
    Pattern("avg_pool2d", op(F.avg_pool2d)(tensor("x")).named("pool")),
    Pattern("avg_pool3d", op(F.avg_pool3d)(tensor("x")).named("pool")),
    Pattern("adaptive_avg_pool1d", op(F.adaptive_avg_pool1d)(tensor("x")).named("pool")),
    Pattern("adaptive_avg_pool2d", op(F.adaptive_avg_pool2d)(tensor("x")).named("pool")),
    Pattern("adaptive_avg_pool3d", op(F.adaptive_avg_pool3d)(tensor("x")).named("pool")),
    Pattern("mean", op(torch.mean)(tensor("x")).named("mean"), check=no_dtype),
    Pattern("sum", op(torch.sum)(tensor("x")).named("mean"), check=no_dtype),
)
