"""Convolution patterns. One entry = one unit that is quantized, fused and lowered as a whole."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.fx import Node

from fxquant.graph.query import module_of
from fxquant.patterns.activation import clamped, constant_bounds
from fxquant.patterns.elementwise import plain_add
from fxquant.patterns.pattern import Op, Pattern, Reject, all_of, op, tensor

CONV = op(nn.Conv2d)(tensor("x")).named("conv")
CONV_BN = op(nn.BatchNorm2d)(CONV).named("bn")


def can_fold(captures: Mapping[str, Node]) -> Reject | None:
    """Folding multiplies the weight by gamma / sqrt(running_var + eps), so the statistics must be fixed."""
    module = module_of(captures["bn"])
    if module is None or module.running_var is None:
        return Reject("batch norm keeps no running statistics (track_running_stats=False)", captures["bn"])
    return None


def plus_residual(inner: Op) -> Op:
    """``inner`` plus a second tensor, on either side of the plus."""
    return op(torch.add, commutative=True)(inner, tensor("residual")).named("add")


CONV_PATTERNS = (
    # With a residual: only backends that have a rule for them fuse these.
    Pattern(
        "conv_bn_add_act",
        clamped(plus_residual(CONV_BN)),
        ("x", "residual"),
        "conv",
        check=all_of(can_fold, plain_add, constant_bounds),
    ),
    Pattern("conv_bn_add", plus_residual(CONV_BN), ("x", "residual"), "conv", check=all_of(can_fold, plain_add)),
    Pattern(
        "conv_add_act",
        clamped(plus_residual(CONV)),
        ("x", "residual"),
        "conv",
        check=all_of(plain_add, constant_bounds),
    ),
    Pattern("conv_add", plus_residual(CONV), ("x", "residual"), "conv", check=plain_add),
    Pattern("conv_bn_act", clamped(CONV_BN), ("x",), "conv", check=all_of(can_fold, constant_bounds)),
    Pattern("conv_bn", CONV_BN, ("x",), "conv", check=can_fold),
    Pattern("conv_act", clamped(CONV), ("x",), "conv", check=constant_bounds),
    Pattern("conv", CONV, ("x",), "conv"),
)
