"""Linear layers, alone or with a batch norm and a clamp behind them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.fx import Node

from fxquant.graph.affine import ChannelAffine
from fxquant.graph.query import called_module, value_of
from fxquant.patterns.activation import clamped, constant_bounds
from fxquant.patterns.batch_norm import fixed_statistics, normalized
from fxquant.patterns.pattern import Output, Pattern, Reject, all_of, op, tensor

LINEAR = op(nn.Linear)(tensor("x")).named("linear")
LINEAR_BN = normalized(LINEAR)


def features_are_channels(captures: Mapping[str, Node]) -> Reject | None:
    """A batch norm takes the [N, L, F] of a linear layer for [N, C, L]: its channels are then no features."""
    value, norm = value_of(captures["linear"]), called_module(captures["bn"])
    if isinstance(norm, ChannelAffine):
        return Reject("it multiplies along another dimension than the features") if norm.behind else None
    if value is not None and len(value.shape) != 2:
        return Reject("the batch norm normalizes dimension 1, which holds no features of the linear layer")
    return None


CAN_FOLD = all_of(fixed_statistics, features_are_channels)

LINEAR_PATTERNS = (
    Pattern("linear_bn_act", clamped(LINEAR_BN), ("x",), "linear", check=all_of(CAN_FOLD, constant_bounds)),
    Pattern("linear_bn", LINEAR_BN, ("x",), "linear", check=CAN_FOLD),
    Pattern("linear_act", clamped(LINEAR), ("x",), "linear", check=constant_bounds),
    Pattern("linear", LINEAR, ("x",), "linear"),
)

DYNAMIC_LINEAR = (Pattern("dynamic_linear", LINEAR, (), "linear", output=Output.FLOAT, dynamic=("x",)),)
"""Here the input comes in floats, and each call measures it."""

WEIGHT_ONLY_LINEAR = (Pattern("weight_only_linear", LINEAR, (), "linear", output=Output.FLOAT, weight_only=True),)
"""Here products are those of floats; the weight is stored small."""
