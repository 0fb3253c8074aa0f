"""Corrects mean and variance of what layers give, one after the other, and the table of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from tqdm import tqdm

from fxquant.errors import CalibrationError
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.text_table import PrintedTable
from fxquant.measure.runner import FloatRun, order_by_units
from fxquant.training.channel_statistics import ChannelStatistics
from fxquant.training.correctable_layers import CorrectableLayer
from fxquant.training.resumable_run import Memory, ResumableRun
from fxquant.training.weighted_units import Left


@dataclass(frozen=True, slots=True)
class CorrectedLayer:
    """One layer whose outputs got the mean and the variance of the float model."""

    unit: str
    pattern: str
    channels: int
    smallest: float
    """The smallest factor of a channel."""
    largest: float
    """The largest one."""
    before: float
    """Squared error of the outputs over their squares, without the correction."""
    after: float
    """The same with it."""


@dataclass(frozen=True, slots=True)
class CorrectedLayers(PrintedTable[CorrectedLayer]):
    """Shows what ``correct_statistics`` has changed. Print it, or read ``rows``."""

    _HEAD: ClassVar[tuple[str, ...]] = ("unit", "pattern", "channels", "factors", "noise before", "after")
    _ALIGN: ClassVar[str] = "llrrrr"
    _LEGEND: ClassVar[str] = "factors: of the weight scales; noise of what the layer gives, over its signal"

    left: tuple[Left, ...] = ()
    """Units with a weight that are not corrected."""

    def _cells(self, rows: Sequence[CorrectedLayer]) -> Iterable[Sequence[Any]]:
        for row in rows:
            factors = f"{row.smallest:.3f} to {row.largest:.3f}"
            yield row.unit, row.pattern, row.channels, factors, f"{row.before:.3g}", f"{row.after:.3g}"

    def _sentences(self) -> list[str]:
        return [f"{each.unit} is not corrected: {each.reason}" for each in self.left]


@dataclass(slots=True)
class LayersInTurn:
    """Corrects one layer after the other, each on what the corrected layers before it give.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave; it is changed: it is corrected afterwards.
        layers: Those to correct.
        inputs: Of each batch, by name.
        memory: Holds what layers read.
    """

    simulated: GraphModule
    layers: Sequence[CorrectableLayer]
    inputs: Sequence[Mapping[str, Any]]
    memory: Memory
    found: dict[str, nn.Module] = field(default_factory=dict, init=False)
    """Root of a unit -> its layer, with the integers and the bias."""

    def run(self, progress: bool) -> tuple[CorrectedLayer, ...]:
        """Return what was changed in each layer; with a progress bar over all layers."""
        by_root = {layer.unit.root: layer for layer in self.layers}
        order, places = order_by_units(self.simulated, [layer.unit for layer in self.layers])
        exact, quantized = (
            ResumableRun(kind(self.simulated, {}), order, self.inputs, self.memory)
            for kind in (FloatRun, BoundInterpreter)
        )
        rows = []
        with tqdm(total=len(places), desc="correct_statistics", unit="layer", disable=not progress) as bar:
            for unit, place in places:
                bar.set_postfix_str(unit.root)
                layer = by_root[unit.root]
                with torch.no_grad():
                    rows.append(self._corrected(layer, place, exact, quantized))
                bar.update()
        return tuple(rows)

    def _corrected(
        self, layer: CorrectableLayer, place: range, exact: ResumableRun, quantized: ResumableRun
    ) -> CorrectedLayer:
        statistics = ChannelStatistics(layer.channel_axis)
        for batch in range(len(self.inputs)):
            for run in (exact, quantized):
                run.advance(batch, place.start)
            pair = layer.unrounded(exact.values(batch)), layer.rounded(quantized.values(batch))
            _check_finite(layer.unit.root, batch, *pair)
            statistics.add(*pair)
        if not statistics.count:
            raise CalibrationError("there is nothing to measure: all batches are empty", at=layer.unit.root)
        found = statistics.correction(scales=layer.can_be_scaled, shifts=layer.can_be_shifted)
        self.found[layer.unit.root] = layer.correct(found)
        ends = (float(found.factor.min()), float(found.factor.max()))
        return CorrectedLayer(
            layer.unit.root, layer.unit.pattern, len(found.factor), *ends, before=found.before, after=found.after
        )


def _check_finite(root: str, batch: int, exact: Tensor, quantized: Tensor) -> None:
    """Refuse values that have no mean: a bias that makes up for them would not be finite."""
    for model, values in (("float", exact), ("quantized", quantized)):
        broken = int(values.numel() - values.isfinite().sum())
        if broken:
            raise CalibrationError(
                "a layer gives values that are not finite: they have no mean and no variance",
                at=root,
                got=f"{broken} of {values.numel()} values of the {model} model, calibration batch {batch}",
                expected="finite values",
                hint="leave the batch out, or look at the layers before this one",
            )
