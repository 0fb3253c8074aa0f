"""Writes functions that multiply their input by a gate of it as gate and product: SiLU, hardswish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from fxquant.graph.decompositions.composites import Composite, Emit, IsConstant
from fxquant.graph.edit import Emitter


def _gated_by(gate: Any) -> Emit:
    def emit_gated(emit: Emitter, node: Node, is_constant: IsConstant) -> Node | str:
        x = node.args[0]
        return emit.function(torch.mul, x, emit.function(gate, x))

    return emit_gated


SELF_GATED: Mapping[Any, Composite] = {
    F.silu: Composite(_gated_by(torch.sigmoid), (torch.sigmoid,)),
    F.hardswish: Composite(_gated_by(F.hardsigmoid), (F.hardsigmoid,)),
}
"""Function -> the rule that takes it apart, for back ends that have integer operators for gate and product alone."""
