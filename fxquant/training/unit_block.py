"""AdaRound: blocks of one unit, of which the rounding alone is learned, from single outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.fx import GraphModule

from fxquant.fake_quantize.adaround import AdaRoundFakeQuantize, OwnIntegersFakeQuantize
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.query import nodes_by_name
from fxquant.measure.runner import WeightsOnly, order_by_units
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.training.block_run import BlockRun, Learnable, TwoRuns
from fxquant.training.checkpoint import Checkpoint, Learned
from fxquant.training.resumable_run import Memory
from fxquant.training.rounding_steps import Learning
from fxquant.training.unit_learning import learn
from fxquant.training.unit_samples import RowSamples, Samples, UnitNodes, WholeSamples
from fxquant.training.unit_table import UnitLoss


class UnitBlock(Learnable):
    """One unit as a block: its layer learns to round.

    Args:
        unit: The unit.
        nodes: Its nodes in the simulation.
        rounding: Its ``V`` is learned.
        learning: How it learns.
    """

    def __init__(self, unit: QuantUnit, nodes: UnitNodes, rounding: AdaRoundFakeQuantize, learning: Learning) -> None:
        self.name, self.nodes = unit.root, nodes.members
        self._pattern, self._unit_nodes = unit.pattern, nodes
        self._rounding, self._learning = rounding, learning

    def state(self) -> Learned:
        return {"V": self._rounding.V.detach()}

    def learn(
        self, runs: TwoRuns, places: range, generator: Generator, progress: Callable[[], object]
    ) -> tuple[float, float]:
        targets = runs.targets(places.stop, self.name)
        runs.advance(runs.quantized, places.start)
        samples = self._samples(runs, targets, generator)
        module = self._unit_nodes.module
        weight = module.weight.detach()
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
        with torch.enable_grad():
            errors = learn(self._rounding, weight, samples, self._learning, generator, progress, module.output_axis)
        runs.memory.free("rows")
        return errors

    def finish(self, state: Mapping[str, Any]) -> UnitLoss:
        self._rounding.V.data.copy_(state["V"])
        self._rounding.set_soft_rounding(False)
        return UnitLoss(self.name, self._pattern, state["before"], state["after"])

    def _samples(self, runs: TwoRuns, targets: Sequence[Tensor], generator: Generator) -> Samples:
        if self._unit_nodes.is_row_by_row:
            return RowSamples(self._unit_nodes, runs.quantized, targets, runs.memory, generator)
        return WholeSamples(self._unit_nodes, runs.quantized, targets)


def unit_run(
    simulated: GraphModule,
    plan: QuantPlan,
    layers: Mapping[str, Any],
    inputs: Sequence[Mapping[str, Any]],
    learning: Learning,
    activations: bool,
    seed: int,
    memory: Memory,
    checkpoint: Checkpoint | None,
) -> BlockRun:
    """Return the run over blocks of one unit.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave; it is changed: its layers round as ``layers`` do.
        plan: Its plan.
        layers: Root of a unit -> a layer with its ``AdaRoundFakeQuantize``. Where its ``V`` gets no gradient, it stays.
        inputs: Of each batch, by name.
        learning: How each unit learns.
        activations: Whether the units read quantized activations.
        seed: Of what each unit draws.
        memory: Holds what units read.
        checkpoint: Holds what finished units learned.
    """
    simulated.requires_grad_(False)  # of all that it holds now; what learns is put in below
    by_name = nodes_by_name(simulated)
    nodes = {unit.root: UnitNodes.of(unit, by_name) for unit in plan.units if unit.root in layers}
    for root, each in nodes.items():
        module: Any = each.module
        module.weight_fake_quant = OwnIntegersFakeQuantize(layers[root].weight_fake_quant)
    units = [unit for unit in plan.units if unit.root in layers and layers[unit.root].weight_fake_quant.V.requires_grad]
    order, places = order_by_units(simulated, units)
    blocks = [UnitBlock(unit, nodes[unit.root], layers[unit.root].weight_fake_quant, learning) for unit, _ in places]
    reads: type[BoundInterpreter] = BoundInterpreter if activations else WeightsOnly
    return BlockRun(simulated, order, blocks, inputs, learning.iterations, seed, memory, checkpoint, "adaround", reads)
