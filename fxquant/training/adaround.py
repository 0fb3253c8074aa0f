"""AdaRound: unit by unit, in the order of the graph, each on what the quantized units before it give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.fx import GraphModule
from tqdm import tqdm

from fxquant.errors import CalibrationError
from fxquant.fake_quantize.adaround import AdaRoundFakeQuantize, OwnIntegersFakeQuantize
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.query import nodes_by_name
from fxquant.graph.text_table import format_rows
from fxquant.measure.runner import FloatRun, WeightsOnly, order_by_units
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.training.checkpoint import Checkpoint, Learned
from fxquant.training.reconstruct import Learning, learn
from fxquant.training.resumable_run import Memory, ResumableRun
from fxquant.training.unit_samples import RowSamples, Samples, UnitNodes, WholeSamples
from fxquant.training.weighted_units import Left


@dataclass(frozen=True, slots=True)
class UnitLoss:
    """The squared error of one unit on what it learned from: the sum over channels, the mean over all else."""

    unit: str
    pattern: str
    nearest: float
    """With each weight rounded to the nearest step, or as it was given."""
    learned: float
    """With what was learned."""


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """Shows what learning to round has gained. Print it, or read ``rows``."""

    rows: tuple[UnitLoss, ...]
    """In the order in which the units were learned."""
    left: tuple[Left, ...] = ()
    """Units with a weight whose rounding was not learned."""

    def __iter__(self) -> Iterator[UnitLoss]:
        return iter(self.rows)

    def __str__(self) -> str:
        table = [
            (row.unit, row.pattern, f"{row.nearest:.4g}", f"{row.learned:.4g}", f"{_part(row):.0%}")
            for row in self.rows
        ]
        text = format_rows(table, ("unit", "pattern", "error before", "learned", "part"), "llrrr")
        return "\n".join([text, *(f"{each.unit} is rounded to nearest: {each.reason}" for each in self.left)])


def _part(row: UnitLoss) -> float:
    return row.learned / row.nearest if row.nearest > 0 else 1.0


@dataclass(slots=True)
class Reconstructor:
    """Learns the rounding of one unit after the other.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave; it is changed: it rounds as was learned afterwards.
        plan: Its plan.
        layers: Root of a unit -> a layer with its ``AdaRoundFakeQuantize``: its ``V`` is set.
        inputs: Of each batch, by name.
        learning: How each unit learns.
        activations: Whether the units read quantized activations.
        seed: Of what each unit draws.
        memory: Holds what units read.
        checkpoint: Holds what finished units learned.
    """

    simulated: GraphModule
    plan: QuantPlan
    layers: Mapping[str, Any]
    inputs: Sequence[Mapping[str, Any]]
    learning: Learning
    activations: bool
    seed: int
    memory: Memory
    checkpoint: Checkpoint | None
    _nodes: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = nodes_by_name(self.simulated)

    def run(self, progress: bool) -> tuple[UnitLoss, ...]:
        """Return the error of each unit before and after; with a progress bar over all steps of all units."""
        self.simulated.requires_grad_(False)
        units = [unit for unit in self.plan.units if unit.root in self.layers]
        for unit in units:
            module: Any = self._unit_nodes(unit).module
            module.weight_fake_quant = OwnIntegersFakeQuantize(self.layers[unit.root].weight_fake_quant)
        learning = [unit for unit in units if self.layers[unit.root].weight_fake_quant.V.requires_grad]
        order, places = order_by_units(self.simulated, learning)
        reads: type[BoundInterpreter] = BoundInterpreter if self.activations else WeightsOnly
        exact, quantized = (
            ResumableRun(kind(self.simulated, {}), order, self.inputs, self.memory) for kind in (FloatRun, reads)
        )
        losses = []
        total = len(places) * self.learning.iterations
        with tqdm(total=total, desc="adaround", unit="step", disable=not progress) as bar:
            for index, (unit, place) in enumerate(places):
                bar.set_postfix_str(f"{unit.root}, {index + 1} of {len(places)}")
                before, after = self._learn(index, unit, place, exact, quantized, bar)
                losses.append(UnitLoss(unit.root, unit.pattern, before, after))
        return tuple(losses)

    def _learn(
        self, index: int, unit: QuantUnit, place: range, exact: ResumableRun, quantized: ResumableRun, bar: Any
    ) -> tuple[float, float]:
        layer = self.layers[unit.root]
        rounding: AdaRoundFakeQuantize = layer.weight_fake_quant
        # What an earlier run has finished is taken from its file.
        like: Learned = {"V": rounding.V, "before": 0.0, "after": 0.0}
        if self.checkpoint is not None and (found := self.checkpoint.load(index, like)) is not None:
            rounding.V.data.copy_(found["V"])
            rounding.set_soft_rounding(False)
            bar.update(self.learning.iterations)
            return found["before"], found["after"]
        # Sample what the layer reads and what it should give.
        targets = [exact.advance(batch, place.stop) for batch in range(len(self.inputs))]
        for batch in range(len(self.inputs)):
            quantized.advance(batch, place.start)
        if not any(target.numel() for target in targets):
            raise CalibrationError("there is nothing to learn from: all batches are empty", at=unit.root)
        generator = Generator().manual_seed(_mixed(self.seed, index))
        samples = self._samples(unit, quantized, targets, generator)
        # Learn.
        module = self._unit_nodes(unit).module
        weight = module.weight.detach()
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
        with torch.enable_grad():
            before, after = learn(rounding, weight, samples, self.learning, generator, bar.update, module.output_axis)
        self.memory.free("rows")
        if self.checkpoint is not None:
            self.checkpoint.save(index, {"V": rounding.V.detach(), "before": before, "after": after})
        return before, after

    def _samples(self, unit: QuantUnit, run: ResumableRun, targets: Sequence[Tensor], generator: Generator) -> Samples:
        nodes = self._unit_nodes(unit)
        if nodes.is_row_by_row:
            return RowSamples(nodes, run, targets, self.memory, generator)
        return WholeSamples(nodes, run, targets)

    def _unit_nodes(self, unit: QuantUnit) -> UnitNodes:
        return UnitNodes.of(unit, self._nodes)


def _mixed(seed: int, index: int) -> int:
    """Make a seed for each unit, so that what it draws does not depend on whether those before were learned here."""
    return (seed * 1_000_003 + index) % (1 << 63)


def only_modules(layers: Mapping[str, nn.Module]) -> nn.ModuleDict:
    """Return the layers under the roots of their units; past add_module, which refuses the names of attributes."""
    modules = nn.ModuleDict()
    modules._modules.update(layers)
    return modules
