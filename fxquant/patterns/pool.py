"""Pools and means. A maximum picks values and shares its input's grid; an average makes new ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch.fx import Node

from fxquant.patterns.pattern import Output, Pattern, Reject, op, tensor


def no_dtype(captures: Mapping[str, Node]) -> Reject | None:
    node = captures["mean"]
    if node.kwargs.get("dtype") is not None:
        return Reject("dtype is given: the mean is wanted in another precision", node)
    return None


POOL = (
    Pattern("max_pool2d", op(F.max_pool2d)(tensor("x")).named("pool"), output=Output.PICKED),
    Pattern("avg_pool2d", op(F.avg_pool2d)(tensor("x")).named("pool")),
    Pattern("adaptive_avg_pool2d", op(F.adaptive_avg_pool2d)(tensor("x")).named("pool")),
    Pattern("mean", op(torch.mean)(tensor("x")).named("mean"), check=no_dtype),
)
