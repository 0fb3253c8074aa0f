"""Operators that only move values: they run as they are on stored integers, on their input's grid."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from fxquant.patterns.pattern import Output, Pattern, Reject, op, tensor


def inactive(captures: Mapping[str, Node]) -> Reject | None:
    """``F.dropout`` drops in evaluation mode too, unless it is told ``training=False``; modules follow their mode."""
    node = captures["dropout"]
    if node.op == "call_module":
        return None
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True)
    return Reject("it drops values even in evaluation mode (training=True)", node) if training else None


DROPOUT = op(nn.Dropout, nn.Dropout2d, F.dropout, F.dropout2d)(tensor("x")).named("dropout")

SHAPE = (
    Pattern("flatten", op(torch.flatten)(tensor("x")), output=Output.PICKED),
    Pattern("reshape", op(torch.reshape)(tensor("x")), output=Output.PICKED),
    Pattern("dropout", DROPOUT, output=Output.PICKED, check=inactive),
    Pattern("identity", op(nn.Identity)(tensor("x")), output=Output.PICKED),
)
