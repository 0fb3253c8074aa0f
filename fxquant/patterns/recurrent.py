"""Recurrent layers of torch, of whole sequences and of one step."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Node

from fxquant.graph.query import called_module
from fxquant.graph.recurrent import RECURRENT, RecurrentShape
from fxquant.patterns.pattern import Output, Pattern, Reject, op, tensor

RECURRENT_LAYER = op(*RECURRENT)(tensor("x")).named("recurrent")


def has_own_matrices(captures: Mapping[str, Node]) -> Reject | None:
    """Something may compute a matrix in each call, as ``torch.nn.utils.parametrize`` does while training."""
    layer = called_module(captures["recurrent"])
    computed = [m.name for m in RecurrentShape.of(layer).all_matrices() if m.name not in layer._parameters]
    return Reject(f"its {computed[0]} is computed in each call") if computed else None


STATIC_RECURRENT = (
    Pattern(
        "recurrent", RECURRENT_LAYER, (), "recurrent", output=Output.FLOAT, check=has_own_matrices, rounds_inside=True
    ),
)
"""Here inputs and hidden states of a layer have one range, which calibration measures."""

DYNAMIC_RECURRENT = (
    Pattern(
        "dynamic_recurrent",
        RECURRENT_LAYER,
        (),
        "recurrent",
        output=Output.FLOAT,
        check=has_own_matrices,
        dynamic=("x",),
        rounds_inside=True,
    ),
)
"""Here each call measures its input, and the hidden states of each step."""
