"""Operators that only move values: they run as they are on stored integers, on their input's grid."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fxquant.patterns.pattern import Output, Pattern, op, tensor

SHAPE = (
    Pattern("flatten", op(torch.flatten)(tensor("x")), output=Output.PICKED),
    Pattern("reshape", op(torch.reshape)(tensor("x")), output=Output.PICKED),
    Pattern("dropout", op(nn.Dropout, nn.Dropout2d, F.dropout, F.dropout2d)(tensor("x")), output=Output.PICKED),
    Pattern("identity", op(nn.Identity)(tensor("x")), output=Output.PICKED),
)
