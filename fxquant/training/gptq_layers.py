"""Rounds the weights of a model by GPTQ: layer by layer, each on what the quantized layers before it give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from tqdm import tqdm

from fxquant.errors import CalibrationError, error_context
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.query import nodes_by_name
from fxquant.measure.runner import order_by_units, run_nodes
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.training.checkpoint import Checkpoint
from fxquant.training.gptq_columns import Choices
from fxquant.training.gptq_weight import Rounded, round_weight
from fxquant.training.input_products import InputProducts, inputs_of_output
from fxquant.training.resumable_run import Memory, ResumableRun
from fxquant.training.rounded_layers import RoundedLayer
from fxquant.training.unit_samples import UnitNodes


@dataclass(slots=True)
class LayerByLayer:
    """Rounds one weight after the other.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave; it is changed: it rounds as was found afterwards.
        plan: Its plan.
        units: Those whose weight is rounded.
        inputs: Of each batch, by name.
        choices: How columns are rounded.
        memory: Holds what layers read.
        checkpoint: Holds what was found for finished layers.
    """

    simulated: GraphModule
    plan: QuantPlan
    units: Sequence[QuantUnit]
    inputs: Sequence[Mapping[str, Any]]
    choices: Choices
    memory: Memory
    checkpoint: Checkpoint | None
    layers: dict[str, nn.Module] = field(default_factory=dict, init=False)
    """Root of a unit -> its layer, with the integers."""

    def run(self, progress: bool) -> tuple[RoundedLayer, ...]:
        """Return the error of each layer before and after; with a progress bar over all layers."""
        self.simulated.requires_grad_(False)
        nodes = nodes_by_name(self.simulated)
        order, places = order_by_units(self.simulated, self.units)
        quantized = ResumableRun(BoundInterpreter(self.simulated, {}), order, self.inputs, self.memory)
        rows = []
        with tqdm(total=len(places), desc="gptq", unit="layer", disable=not progress) as bar, torch.no_grad():
            for index, (unit, place) in enumerate(places):
                bar.set_postfix_str(unit.root)
                unit_nodes = UnitNodes.of(unit, nodes)
                found = self._saved(index, unit, unit_nodes)
                if found is None:
                    found = self._found(unit, unit_nodes, place, quantized)
                    if self.checkpoint is not None:
                        self.checkpoint.save(index, found.state())
                elif progress:
                    bar.initial += 1  # it took no time, so it says nothing of the time that is left
                self.layers[unit.root] = found.use(unit_nodes.module)
                rows.append(self._row(unit, unit_nodes, found))
                bar.update()
        return tuple(rows)

    def _found(self, unit: QuantUnit, nodes: UnitNodes, place: range, quantized: ResumableRun) -> Rounded:
        products = InputProducts(nodes.module)
        ahead = nodes.members[: nodes.members.index(nodes.layer)]
        for batch in range(len(self.inputs)):
            quantized.advance(batch, place.start)
            values = quantized.values(batch)
            with error_context(f"calibration batch {batch}", at=nodes.layer):
                products.add(values[nodes.input] if nodes.input in values else run_nodes(ahead, values))
        if not products.count:
            raise CalibrationError("there is nothing to round by: all batches are empty", at=unit.root)
        weight, ref = nodes.module.weight.detach(), unit.roles["weight"]
        return round_weight(weight, self.plan.qparams[ref], self.plan.policies[ref], products, self.choices)

    def _saved(self, index: int, unit: QuantUnit, nodes: UnitNodes) -> Rounded | None:
        if self.checkpoint is None:
            return None
        like = Rounded.like(nodes.module.weight, self.plan.qparams[unit.roles["weight"]])
        state = self.checkpoint.load(index, like.state())
        return None if state is None else like.of_state(state)

    def _row(self, unit: QuantUnit, nodes: UnitNodes, found: Rounded) -> RoundedLayer:
        inputs, note = inputs_of_output(nodes.module), found.note(self.choices)
        return RoundedLayer(unit.root, unit.pattern, inputs, found.nearest, found.rounded, note)
