"""How much noise each layer of an int8 model carries, against the float model on the same inputs."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

import fxquant as fxq
from fxquant.measure.noise import sqnr
from fxquant.measure.parity import plan_of
from fxquant.plan.spec import QParams


def layer_sqnr(prepared: fxq.Quantizer, int8: GraphModule, x: Tensor) -> tuple[tuple[str, float], ...]:
    """SQNR of the output of every unit that multiplies and accumulates.

    Args:
        prepared: A calibrated quantizer: its graph is the float model.
        int8: What ``convert(prepared)`` gave.
        x: The only input of the model.

    Returns:
        Name of the user's module (or of the node) and dB, in the order in which they run. Noise adds up: a value holds
        that of all layers before it.
    """
    wanted = {row.node: row.module or row.node for row in prepared.coverage() if row.fate == "int8" and row.macs}
    plan = plan_of(int8)
    measured = [unit for unit in plan.units if unit.root in wanted]
    all_qparams = {unit.root: plan.qparams[unit.roles["y"]] if "y" in unit.roles else None for unit in measured}
    exact, stored = _values(prepared.graph_module, x, all_qparams), _values(int8, x, all_qparams)
    return tuple(
        (wanted[name], sqnr(exact[name], _real(stored[name], qparams)))
        for name, qparams in all_qparams.items()
        if name in exact and name in stored
    )


def _real(values: Tensor, qparams: QParams | None) -> Tensor:
    """The real numbers that a unit's values stand for; they are these themselves where it has no grid."""
    return values if qparams is None else (values.float() - qparams.zero_point) * qparams.scale


class _Keeper(Interpreter):
    """Runs a graph and keeps the values of some nodes."""

    def __init__(self, gm: GraphModule, names: Container[str]) -> None:
        super().__init__(gm)
        self.names = names
        self.values: dict[str, Tensor] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.name in self.names:
            self.values[n.name] = value.clone()
        return value


def _values(gm: GraphModule, x: Tensor, names: Container[str]) -> dict[str, Tensor]:
    keeper = _Keeper(gm, names)
    with torch.no_grad():
        keeper.run(x)
    return keeper.values
